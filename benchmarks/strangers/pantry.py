"""Stock control with a delay: flour that is ordered today arrives in two days, and demand is known that far ahead."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

DAYS, ROOM = 8, 5
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 300, "validation": 40, "test": 100}


class Pantry(TextEnv):
    """The shop closes if a day's demand can't be served, or if more sacks arrive than there is room for."""

    def __init__(self, horizon: int = 8) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("pantry", "split", split, SPLITS)
        require_known("pantry", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"shop-{seed}", "pantry", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        self.demand = [*rng.integers(1, ROOM + 1, size=DAYS).tolist(), 0, 0]
        self.stock = int(rng.integers(self.demand[0], ROOM + 1))
        left = self.stock - self.demand[0]
        self.coming = int(rng.integers(max(0, self.demand[1] - left), ROOM - left + 1))
        self.day, self.trouble = 0, ""

    def apply(self, action):
        self.stock += self.coming - self.demand[self.day]
        self.coming = int(action.removeprefix("order "))
        self.day += 1
        if self.day == DAYS:
            return Outcome(1.0, terminated=True, success=True)
        if self.stock > ROOM:
            self.trouble = "There is no room for so many sacks. "
        elif self.stock < self.demand[self.day]:
            self.trouble = "There are too few sacks for today. "
        return Outcome(-0.3, terminated=True) if self.trouble else Outcome(0.1)

    def state(self):
        if self.day == DAYS:
            return "All days are served.\n"
        today, tomorrow, later = self.demand[self.day : self.day + 3]
        return (
            f"Day {self.day + 1} of {DAYS}. {self.trouble}In stock: {self.stock} sacks; there is room for {ROOM}.\n"
            f"Arriving tomorrow: {self.coming}. An order of today arrives the day after tomorrow.\n"
            f"Needed today: {today}, tomorrow: {tomorrow}, the day after tomorrow: {later}.\n"
        )

    def legal_actions(self):
        return [f"order {sacks}" for sacks in range(ROOM + 1)]


def best(env):
    """Order what will be missing in two days, and no more."""
    today, tomorrow, later = env.demand[env.day : env.day + 3]
    left = env.stock - today + env.coming - tomorrow
    return f"order {min(ROOM, max(0, later - left))}"
