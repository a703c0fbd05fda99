"""Long horizon with one reward: eight doors in a row, each with a sign that says how it opens."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

OPENS = {"round": "turn", "flat": "press", "long": "pull"}
DOORS = 8
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 200, "validation": 40, "test": 100}


class LongCorridor(TextEnv):
    """A wrong handle sends the player back by a door. Nothing is paid before the last door."""

    def __init__(self, horizon: int = 24) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("long_corridor", "split", split, SPLITS)
        require_known("long_corridor", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"corridor-{seed}", "long_corridor", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        drawn = np.random.default_rng(task.payload["seed"]).integers(len(OPENS), size=DOORS)
        self.handles = [list(OPENS)[i] for i in drawn]
        self.door = 0

    def apply(self, action):
        if action != OPENS[self.handles[self.door]]:
            self.door = max(0, self.door - 1)
            return Outcome(0.0)
        self.door += 1
        out = self.door == DOORS
        return Outcome(float(out), terminated=out, success=out)

    def state(self):
        handle = "none" if self.door == DOORS else self.handles[self.door]
        return f"Door {self.door + 1} of {DOORS}. Its handle is {handle}.\n"

    def legal_actions(self):
        return sorted(OPENS.values())


def best(env):
    """Return the action that opens the door."""
    return OPENS[env.handles[env.door]]
