"""Actions whose texts vary: every stall sells other things, and the list says what is wanted."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

COLOURS = ("red", "green", "blue", "white", "black")
THINGS = ("cup", "hat", "rope", "coat", "box", "lamp")
FORMS = ("buy the {}", "take a {} home", "pay for one {}")
STALLS = 3
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 400, "validation": 40, "test": 100}


class Market(TextEnv):
    """Four offers a stall, in words that change; one of them is what the list says. A wrong purchase ends the day."""

    def __init__(self, horizon: int = 3) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("market", "split", split, SPLITS)
        require_known("market", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"market-{seed}", "market", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        goods = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
        self.stalls = []
        for _ in range(STALLS):
            offered = rng.permutation(goods)[:4].tolist()
            texts = [FORMS[rng.integers(len(FORMS))].format(name) for name in offered]
            self.stalls.append((offered[0], texts[0], [texts[i] for i in rng.permutation(4)]))
        self.stall = 0

    def apply(self, action):
        if action != self.stalls[self.stall][1]:
            return Outcome(-0.2, terminated=True)
        self.stall += 1
        finished = self.stall == STALLS
        return Outcome(0.3, terminated=finished, success=finished)

    def state(self):
        return f"Wanted: a {self.stalls[min(self.stall, STALLS - 1)][0]}.\n"

    def legal_actions(self):
        return self.stalls[min(self.stall, STALLS - 1)][2]


def best(env):
    """Return the offer that is on the list."""
    return env.stalls[env.stall][1]
