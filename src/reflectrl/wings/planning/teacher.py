"""Teachers of the planning domains: exact distances as the expert, the search written out as the analyst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import AuxiliaryQuestion
from reflectrl.wings.planning.moves import Move, plan

if TYPE_CHECKING:
    from reflectrl.wings.planning.env import FrontierEnv, PlanningEnv, WalkEnv

SHARPNESS = 1.4
"""Steepness of preferences: a state that is one move farther has exp(-1.4), about a quarter, of the weight."""
MOST_MOVES = 6
"""Most moves of a plan that an analysis names."""


def weights(costs: Sequence[int | None]) -> list[float]:
    """Return a weight for each distance to the goal, 1 for the shortest. Empty if no state leads to the goal."""
    reachable = [cost for cost in costs if cost is not None]
    if not reachable:
        return []
    shortest = min(reachable)
    preferences = []
    for cost in costs:
        excess = math.inf if cost is None else cost - shortest
        preferences.append(round(math.exp(-SHARPNESS * excess), 4))
    return preferences


def nearest(costs: Sequence[int | None]) -> int:
    """Return the index of the first state with the fewest moves to the goal; 0 if none leads there."""
    return min(range(len(costs)), key=lambda i: (costs[i] is None, costs[i] or 0))


class FrontierTeacher(Teacher):
    """Pick the state nearest to the goal, and write down what the question alone says about the way."""

    def expert_action(self, env: FrontierEnv) -> int:
        return nearest(self.action_costs(env))

    def action_costs(self, env: FrontierEnv) -> list[int | None]:
        """Return the fewest moves to the goal behind each legal action; None if no way leads there."""
        return env.distances(env.frontier)

    def preferences(self, env: FrontierEnv) -> Sequence[float]:
        return weights(self.action_costs(env))

    def questions(self, env: FrontierEnv) -> Sequence[AuxiliaryQuestion]:
        """Ask, in keys and doors, whether a door of the list is open in some state of the frontier.

        It ties the doors of the list to the doors of a state. The recipe `beeline` turns it off (`sft.auxiliary_coef`),
        since it did not pay there.
        """
        if env.domain != "keys_doors" or not env.frontier:
            return ()
        doors = [room for room in env.problem.moves.args[0].doors if room in needed_doors(env)]
        # The step number picks state and door, so that the same episode always asks the same question.
        state = env.frontier[env.explored % len(env.frontier)]
        door = doors[env.explored // 2 % len(doors)]
        question = f"{env.short(state)}: is open{door.title()} there?"
        return (AuxiliaryQuestion(question, ("yes", "no"), int(door not in state[1])),)

    def baseline_action(self, env: FrontierEnv) -> int:
        """Return the choice of the benchmark's classic heuristic."""
        estimates = list(map(env.problem.heuristic, env.frontier))
        return estimates.index(min(estimates))

    def analyse(self, env: FrontierEnv) -> str:
        """Name the doors to open, in order. The questions of other domains allow no such work in advance.

        The text of the observation must show what an analysis says, and it shows the goal only: the states are actions.
        """
        if env.domain == "keys_doors":
            return doors_to_open(env, env.problem.start)
        return "Nothing beforehand."


class WalkTeacher(Teacher):
    """Take a shortest way, and write the way down."""

    def expert_action(self, env: WalkEnv) -> int:
        return nearest(self.action_costs(env))

    def action_costs(self, env: WalkEnv) -> list[int | None]:
        """Return the fewest moves to the goal behind each legal action; None if no way leads there."""
        return env.distances([move.state for move in env.moves.values()])

    def preferences(self, env: WalkEnv) -> Sequence[float]:
        return weights(self.action_costs(env))

    def baseline_action(self, env: WalkEnv) -> int:
        """Return the move to the state that is nearest by the benchmark's classic heuristic."""
        estimates = [env.problem.heuristic(move.state) for move in env.moves.values()]
        return estimates.index(min(estimates))

    def analyse(self, env: WalkEnv) -> str:
        steps = shortest(env, env.current, MOST_MOVES)
        if not steps:
            return "No way."
        route = f"{', '.join(step.name for step in steps)}."
        if env.domain == "keys_doors":
            route = doors_to_open(env, env.current)
        return f"{route} Next {steps[0].name}."


def shortest(env: PlanningEnv, state: Any, most: int = 100) -> list[Move]:
    """Return the first moves of a shortest way from a state."""
    return plan(env.problem, state, env.distances, most)


def needed_doors(env: PlanningEnv, state: Any = None) -> list[str]:
    """Return the doors that a shortest way from a state opens, in order. Without a state, from the start."""
    state = env.problem.start if state is None else state
    doors = []
    for step in shortest(env, state):
        (_, before), (room, after) = state, step.state
        if before != after:
            doors.append(room)
        state = step.state
    return doors


def doors_to_open(env: PlanningEnv, state: Any) -> str:
    """Write the doors that have to be opened, from the exit back: `Needs openGold inRed keyBlue openRed inStart ...`.

    Behind each door stand its room and the room of its key. Their doors come next, unless they are named already or are
    open. So a reader of the building finds each word by looking up one door that stands in the text so far. In the
    order in which doors are opened, the first word would take the whole search.
    """
    building, (_, visited) = env.problem.moves.args[0], state
    doors, words = [building.exit], list[str]()
    for door in doors:
        if door in visited:
            continue
        room, key = building.parent[door], building.key_room[door]
        words += [f"open{door.title()}", f"in{room.title()}", f"key{key.title()}"]
        doors += [before for before in dict.fromkeys((room, key)) if before not in doors]
    return f"Needs {' '.join(words)}." if words else "Nothing to open."
