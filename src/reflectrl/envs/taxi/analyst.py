"""The taxi analyst: what a good reflector would say about a state, from what its text shows.

Walls stand only between columns, so a route is told by the row in which each column border is crossed. Saying which
rows are open before saying where to cross turns one hard step of reasoning into several easy ones.
"""

from __future__ import annotations

from reflectrl.envs.taxi.world import ABOARD, MOVES, OPPOSITE, SIZE, Cell, City, Ride


def analyse(city: City, ride: Ride, before: Ride | None, last: str | None) -> str:
    """One line: positions, open borders on the way, the planned route, what the last action did, what to do next.

    Args:
        before: the ride before the last action; None at the start.
        last: the last action; None at the start.
    """
    target = city.target(ride)
    whom = "destination" if ride.passenger == ABOARD else "passenger"
    parts = [f"Taxi {place(ride.cell)}, {whom} {place(target)}."]
    if ride.cell != target:
        parts.append(route(city, ride, target))
    if before is not None and last is not None:
        parts.append(f"Last move {last} {verdict(city, before, ride, last)}.")
    parts.append(f"Next {city.best_action(ride)}.")
    return " ".join(parts)


def place(cell: Cell) -> str:
    """A cell in words, counted from 0 at the top left."""
    return f"row {cell[0]} column {cell[1]}"


def route(city: City, ride: Ride, target: Cell) -> str:
    """The borders to cross with their open rows, the rows where the best path crosses them, and the final row."""
    if ride.column == target[1]:
        return f"Same column, end at row {target[0]}."
    heading = "east" if target[1] > ride.column else "west"
    step = MOVES[heading][1]
    columns = range(ride.column, target[1], step)
    open_rows = "; ".join(
        " ".join(str(row) for row in range(SIZE) if city.can_move((row, column), heading)) for column in columns
    )
    crossings = " ".join(str(row) for row in crossing_rows(city, ride, target))
    return f"Go {heading}, open rows {open_rows}. Cross at {crossings}, end at row {target[0]}."


def crossing_rows(city: City, ride: Ride, target: Cell) -> list[int]:
    """The row in which the best path leaves each column on its way to the target."""
    rows = []
    while ride.cell != target:
        move = city.best_action(ride)
        if move in ("east", "west"):
            rows.append(ride.row)
        ride = city.next_ride(ride, move)
    return rows


def verdict(city: City, before: Ride, now: Ride, last: str) -> str:
    """Whether the last action helped: it brought the delivery nearer, or it is to be undone."""
    if last == "pickup":
        return "took the passenger aboard"
    if last == "dropoff":
        return "left the passenger at the wrong stop, pick up again"
    if city.actions_left(now) < city.actions_left(before):
        return "helped"
    if city.best_action(now) == OPPOSITE[last]:
        return "was a mistake, turn back"
    return "was a mistake, a new route is as short"
