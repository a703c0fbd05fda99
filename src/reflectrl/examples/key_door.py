"""An environment where reward is rare: fetch the key at one end of a corridor, then open the door at the other.

    python src/reflectrl/examples/key_door.py

prints how rarely random actions win. There is no reward before the door is open, so an untrained policy sees none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task, UserError

ACTIONS = ("left", "right", "take", "open")


class KeyDoorEnv(TextEnv):
    """The key lies in cell 1, the door is in the last cell. Impossible actions change nothing.

    There are two milestones on the way: the key is taken, and it is carried past the middle.

    Every third cell is a training start, the furthest from the key first. Validation and test have the others.

    Args:
        length: number of cells, at least 5.
        horizon: number of steps; 0 means two and a half times the length. The furthest start needs nearly twice the
            length.
    """

    stages: ClassVar[tuple[str, ...]] = ("key", "middle", "full")
    milestones: ClassVar[dict[str, str]] = {"key": "key", "middle": "middle"}

    def __init__(self, length: int = 8, horizon: int = 0) -> None:
        if length < 5:
            raise UserError(f"key_door: length must be at least 5, not {length}")
        super().__init__(horizon or 5 * length // 2)
        self.length = length

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("key_door", "split", split, SPLITS)
        require_known("key_door", "stage", stage := stage or "full", self.stages)
        cells = range(self.length - 1 - SPLITS.index(split), 1, -3)
        return [Task(f"{stage}-{cell}", "key_door", {"cell": cell}, split, stage) for cell in cells]

    def begin(self, task: Task) -> None:
        self.cell, self.has_key = task.payload["cell"], False

    def apply(self, action: str) -> Outcome:
        events = []
        if action in ("left", "right"):
            self.cell = min(max(1, self.cell + (1 if action == "right" else -1)), self.length)
            events += ["middle"] if self.has_key and 2 * self.cell > self.length else []
        elif action == "take" and self.cell == 1 and not self.has_key:
            self.has_key = True
            events += ["key"]
        elif action == "open" and self.cell == self.length and self.has_key:
            events += ["full"]
        won = self.task.stage in events
        return Outcome(float(won), terminated=won, success=won, events=tuple(events))

    def state(self) -> str:
        inventory = "the key" if self.has_key else "nothing"
        return f"Cell {self.cell}, key at 1, door at {self.length}. You hold {inventory}.\n"

    def legal_actions(self) -> Sequence[str]:
        return ACTIONS


def chance(env: KeyDoorEnv) -> float:
    """Return the probability that actions drawn uniformly win a training task within the horizon."""
    tasks, total = env.tasks("train"), 0.0
    for task in tasks:
        distribution = {(task.payload["cell"], False): 1.0}
        for _ in range(env.horizon):
            next_distribution: dict[tuple[int, bool], float] = {}
            for (cell, has_key), p in distribution.items():
                for action in ACTIONS:
                    env.reset(options={"task": task})
                    env.cell, env.has_key = cell, has_key
                    if env.apply(action).success:
                        total += p / len(ACTIONS) / len(tasks)
                    else:
                        next_state = (env.cell, env.has_key)
                        next_distribution[next_state] = next_distribution.get(next_state, 0.0) + p / len(ACTIONS)
            distribution = next_distribution
    return total


if __name__ == "__main__":
    for length in (6, 8, 10):
        print(f"{length} cells: random actions win {chance(KeyDoorEnv(length)):.1e} of the training tasks")
