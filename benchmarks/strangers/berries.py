"""Deceptive reward: berries near by pay a little and end the day; the treasure lies six costly steps the other way."""

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.types import Task

SIDES = ("left", "right")


class Berries(TextEnv):
    """The player stands between a bush and a treasure. Every step towards the treasure costs something."""

    def __init__(self, horizon: int = 16) -> None:
        super().__init__(horizon)
        plays = [(side, bush, far) for side in SIDES for bush in (1, 2, 3) for far in (4, 5, 6, 7)]
        self.plays = divide(plays, {"train": 12, "validation": 6, "test": 6}, "berries")

    def tasks(self, split, stage=None):
        require_known("berries", "split", split, SPLITS)
        require_known("berries", "stage", stage or "full", self.stages)
        return [Task("-".join(map(str, play)), "berries", {"play": list(play)}, split) for play in self.plays[split]]

    def begin(self, task):
        self.side, self.bush, self.far = task.payload["play"]
        self.place = 0

    def apply(self, action):
        self.place += 1 if action == f"go {self.side}" else -1
        if self.place == self.far:
            return Outcome(1.0, terminated=True, success=True)
        if self.place == -self.bush:
            return Outcome(0.3, terminated=True)
        return Outcome(-0.05)

    def state(self):
        other = SIDES[1 - SIDES.index(self.side)]
        return (
            f"The treasure is {self.far - self.place} steps to the {self.side}.\n"
            f"Berries are {self.bush + self.place} steps to the {other}.\n"
        )

    def legal_actions(self):
        return ["go left", "go right"]


def best(env):
    """Return the step towards the treasure."""
    return f"go {env.side}"
