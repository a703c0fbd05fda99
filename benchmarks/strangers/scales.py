"""Numbers that must be compared: five pairs of weights in a row, and the heavier one has to be named each time."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

PAIRS = 5
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 300, "validation": 40, "test": 100}


class Scales(TextEnv):
    """Weights are from 10 to 99. A wrong answer ends the weighing."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("scales", "split", split, SPLITS)
        require_known("scales", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"weighing-{seed}", "scales", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        self.pairs = [rng.choice(np.arange(10, 100), size=2, replace=False).tolist() for _ in range(PAIRS)]
        self.weighed = 0

    def apply(self, action):
        left, right = self.pairs[self.weighed]
        if action != ("left" if left > right else "right"):
            return Outcome(-0.2, terminated=True)
        self.weighed += 1
        finished = self.weighed == PAIRS
        return Outcome(0.2, terminated=finished, success=finished)

    def state(self):
        left, right = self.pairs[min(self.weighed, PAIRS - 1)]
        return f"Left: {left} kg. Right: {right} kg.\n"

    def legal_actions(self):
        return ["left", "right"]


def best(env):
    """Return the heavier side."""
    left, right = env.pairs[env.weighed]
    return "left" if left > right else "right"
