"""The teacher on the lake: the best way, and what a good reflector would say, from what the text shows."""

from __future__ import annotations

from itertools import groupby
from string import ascii_lowercase
from typing import TYPE_CHECKING

from reflectrl.core.envs.teacher import Teacher
from reflectrl.wings.frozenlake.world import ACTIONS, OPPOSITE, Cell, Lake

if TYPE_CHECKING:
    from reflectrl.wings.frozenlake.env import FrozenLakeEnv


class FrozenLakeTeacher(Teacher):
    """Take a shortest way (on slippery ice, the way with the best chances) and explain it."""

    def expert_action(self, env: FrozenLakeEnv) -> int:
        return ACTIONS.index(env.lake.best_action(env.cell))

    def analyse(self, env: FrozenLakeEnv) -> str:
        if env.analysis == "waves":
            return f"{waves(env.lake, env.cell)} Next {env.lake.best_action(env.cell)}."
        return analyse(env.lake, env.cell, env.before, env.last)


def analyse(lake: Lake, cell: Cell, before: Cell | None, last: str | None) -> str:
    """Write one line: positions, holes beside the agent, the route, what the last action did, what to do next.

    On slippery ice the agent cannot keep to a route. The moves that cannot end in a hole are listed instead.

    Args:
        before: the cell before the last action; None at the start.
        last: the last action; None at the start.
    """
    holes = " ".join(move for move in ACTIONS if lake.letter(lake.neighbour(cell, move)) == "H") or "none"
    safe = (move for move in ACTIONS if all(lake.letter(near) != "H" for near in lake.outcomes(cell, move)))
    parts = [f"Agent {in_words(cell)}, goal {in_words(lake.goal)}.", f"Holes beside: {holes}."]
    advice = f"Safe moves: {' '.join(safe) or 'none'}." if lake.slippery else f"Route {' '.join(route(lake, cell))}."
    parts.append(advice)
    if before is not None and last is not None:
        parts.append(f"Last move {last} {verdict(lake, before, cell, last)}.")
    parts.append(f"Next {lake.best_action(cell)}.")
    return " ".join(parts)


def in_words(cell: Cell) -> str:
    """Put a cell in words."""
    return f"row {cell[0]} column {cell[1]}"


def route(lake: Lake, cell: Cell) -> list[str]:
    """Return a shortest route with equal moves counted: ["down 2", "right 3"]."""
    return [f"{move} {len(list(same))}" for move, same in groupby(lake.route(cell))]


def waves(lake: Lake, cell: Cell) -> str:
    """Write out a breadth-first search from the goal, cell by cell, up to the wave that reaches the agent.

    Each wave follows from the one before it and the map: "f6, e6, d6 e5, d5." So no wave takes more computation than
    another, while `route` names the whole way at once.
    """
    reached: dict[int, list[str]] = {}
    for other, distance in sorted(lake.distances.items()):
        if distance <= lake.distances[cell]:
            reached.setdefault(distance, []).append(short_name(other))
    return ", ".join(" ".join(reached[distance]) for distance in sorted(reached)) + "."


def short_name(cell: Cell) -> str:
    """Return the name of a cell as in chess, counted from the top left: (0, 0) is "a1", (0, 1) is "b1"."""
    return f"{ascii_lowercase[cell[1]]}{cell[0] + 1}"


def verdict(lake: Lake, before: Cell, now: Cell, last: str) -> str:
    """Describe what the last action did, and whether it helped."""
    if now == before:
        return "met the edge and changed nothing"
    slid = "" if now == lake.neighbour(before, last) else "slid aside, which "
    if lake.values[now] > lake.values[before]:
        return f"{slid}helped"
    turn_back = not lake.slippery and lake.best_action(now) == OPPOSITE[last]
    return f"{slid}was {'bad luck' if slid else 'a mistake'}, {'turn back' if turn_back else 'go on from here'}"
