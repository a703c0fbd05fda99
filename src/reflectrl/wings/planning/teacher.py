"""Teachers of the planning domains: exact distances as the expert, the search written out as the analyst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reflectrl.core.envs.teacher import Teacher
from reflectrl.wings.planning.moves import Move, plan

if TYPE_CHECKING:
    from reflectrl.wings.planning.env import FrontierEnv, PlanningEnv, WalkEnv

MOST_MOVES = 6
"""Most moves of a plan that an analysis names."""


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

    def baseline_action(self, env: FrontierEnv) -> int:
        """Return the choice of the benchmark's classic heuristic."""
        estimates = list(map(env.problem.heuristic, env.frontier))
        return estimates.index(min(estimates))

    def analyse(self, env: FrontierEnv) -> str:
        """Name the doors to open, in order. The other questions say nothing that could be worked out beforehand.

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

    def baseline_action(self, env: WalkEnv) -> int:
        """Return the move to the state that the benchmark's classic heuristic takes for the nearest."""
        estimates = [env.problem.heuristic(move.state) for move in env.moves.values()]
        return estimates.index(min(estimates))

    def analyse(self, env: WalkEnv) -> str:
        if env.domain == "keys_doors":
            steps = shortest(env, env.current, 1)
            following = f" Next {steps[0].name}." if steps else ""
            return f"{doors_to_open(env, env.current)}{following}"
        steps = shortest(env, env.current, MOST_MOVES)
        return f"{', '.join(step.name for step in steps)}." if steps else "No way."


def shortest(env: PlanningEnv, state: Any, most: int = 100) -> list[Move]:
    """Return the first moves of a shortest way from a state."""
    return plan(env.problem, state, env.distances, most)


def doors_to_open(env: PlanningEnv, state: Any) -> str:
    """Write the doors that a shortest way opens, in order: `Then openRed openBlue.`"""
    doors = []
    for step in shortest(env, state):
        (_, before), (room, after) = state, step.state
        if before != after:
            doors.append(f"open{room.title()}")
        state = step.state
    return f"Then {' '.join(doors)}." if doors else "Nothing to open."
