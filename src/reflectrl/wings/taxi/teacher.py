"""The taxi's teacher: a shortest way, and what a good reflector would say about a state, from what its text shows.

Walls stand only between columns, so a shortest way crosses each column between taxi and target once. The analysis
counts backwards from the target: the steps left from every row of a column, then the border to the next column row by
row (o open, x wall), then the steps left from every row of that column. Each list follows from the one before it, which
turns one hard step of reasoning into several easy ones. Every list has the same length, so each number stands where a
small model can learn to look for it.

If the environment describes its state in words, for pretrained models that are slow to write, the analysis is short
instead: the way that is left, in the words one would use for a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

from reflectrl.core.envs.teacher import Teacher
from reflectrl.wings.taxi.world import ABOARD, ACTIONS, MOVES, OPPOSITE, SIZE, Cell, City, Ride

if TYPE_CHECKING:
    from reflectrl.wings.taxi.env import TaxiEnv


class TaxiTeacher(Teacher):
    """Take a shortest way, and explain it."""

    def expert_action(self, env: TaxiEnv) -> int:
        return ACTIONS.index(env.city.best_action(env.ride))

    def analyse(self, env: TaxiEnv) -> str:
        explain = directions
        if env.text == "map":
            explain = route
        return analyse(env.city, env.ride, env.before, env.last, explain)


def analyse(
    city: City, ride: Ride, before: Ride | None, last: str | None, explain: Callable[[City, Ride, Cell], str]
) -> str:
    """Write one line: positions, how to get there, what the last action did, what to do next.

    Args:
        before: the ride before the last action; None at the start.
        last: the last action; None at the start.
        explain: `route` or `directions`. Describes the way to the target if the taxi is not there yet.
    """
    target = city.target(ride)
    whom = "destination" if ride.passenger == ABOARD else "passenger"
    parts = [f"Taxi {in_words(ride.cell)}, {whom} {in_words(target)}."]
    if ride.cell != target:
        parts.append(explain(city, ride, target))
    if before is not None and last is not None:
        parts.append(f"Last move {last} {verdict(city, before, ride, last)}.")
    parts.append(f"Next {city.best_action(ride)}.")
    return " ".join(parts)


def in_words(cell: Cell) -> str:
    """Put a cell in words, counted from 0 at the top left."""
    return f"row {cell[0]} column {cell[1]}"


def route(city: City, ride: Ride, target: Cell) -> str:
    """List the steps left from rows 0 to 4 of each column from target to taxi (9 means 9 or more), and the borders."""
    if ride.column == target[1]:
        return "Same column."
    heading = "east" if target[1] > ride.column else "west"
    step = MOVES[heading][1]
    parts = []
    for column in range(target[1], ride.column - step, -step):
        border, left = list[str](), list[str]()
        for row in range(SIZE):
            border.append("o" if heading in city.moves[row, column] else "x")
            # A single digit, so that every list has the same number of tokens.
            left.append(str(min(9, city.distances[target][row, column])))
        if column != target[1]:  # the target's own column is where the count begins
            parts.append(f"border {' '.join(border)}")
        parts.append(f"column {column} steps {' '.join(left)}")
    return f"Go {heading}: {', '.join(parts)}."


def directions(city: City, ride: Ride, target: Cell) -> str:
    """List the walls and edges beside the taxi, and the moves of a shortest way, counting equal moves in a row."""
    blocked = [side for side in MOVES if side not in city.moves[ride.cell]]
    walls = "No wall"
    if blocked:
        walls = f"Wall {' and '.join(blocked)}"
    cell, moves = ride.cell, list[str]()
    while cell != target:
        moves.append(city.best_action(ride._replace(row=cell[0], column=cell[1])))
        cell = city.moves[cell][moves[-1]]
    legs = ", ".join(f"{move} {len(list(same))}" for move, same in groupby(moves))
    return f"{walls}. Way: {legs}."


def verdict(city: City, before: Ride, now: Ride, last: str) -> str:
    """Describe whether the last action helped: it brought the delivery nearer, or it was a mistake."""
    if last == "pickup":
        return "took the passenger aboard"
    if last == "dropoff":
        return "left the passenger at the wrong stop, pick up again"
    # A shortest way may have several first steps, so what counts is the distance, not the expert's own choice.
    if city.actions_left(now) < city.actions_left(before):
        return "helped"
    if city.best_action(now) == OPPOSITE[last]:
        return "was a mistake, turn back"
    return "was a mistake, a new route is as short"
