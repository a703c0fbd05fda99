"""Forty actions: three calls in a row, each for a line of a department, on a board of forty sockets."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

BANKS = {"sales": "A", "repairs": "B", "office": "C", "kitchen": "D"}
LINES = range(1, 11)
CALLS = 3
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 300, "validation": 40, "test": 100}


class Switchboard(TextEnv):
    """Nothing says which bank belongs to which department; reward teaches it. A wrong socket ends the shift."""

    def __init__(self, horizon: int = 3) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("switchboard", "split", split, SPLITS)
        require_known("switchboard", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"shift-{seed}", "switchboard", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        self.calls = [(list(BANKS)[rng.integers(len(BANKS))], int(rng.integers(1, 11))) for _ in range(CALLS)]
        self.done_calls = 0

    def apply(self, action):
        department, line = self.calls[self.done_calls]
        if action != f"{BANKS[department]}{line}":
            return Outcome(-0.1, terminated=True)
        self.done_calls += 1
        finished = self.done_calls == CALLS
        return Outcome(0.3, terminated=finished, success=finished)

    def state(self):
        department, line = self.calls[min(self.done_calls, CALLS - 1)]
        return f"A call for {department}, line {line}.\n"

    def legal_actions(self):
        return [f"{bank}{line}" for bank in BANKS.values() for line in LINES]


def best(env):
    """Return the socket of the call."""
    department, line = env.calls[env.done_calls]
    return f"{BANKS[department]}{line}"
