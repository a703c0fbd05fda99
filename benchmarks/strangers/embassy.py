"""A look-up in the text whose answer has another name among the actions: where a messenger is sent."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

ACTIONS = {
    "north wing": "climb the marble stairs",
    "south wing": "go down to the cellars",
    "archive": "knock at the clerk's desk",
    "garden": "walk past the fountain",
    "chapel": "follow the bells",
    "stables": "ask the grooms",
}
"""Place in the text → the action that leads there, which shares no word with it."""

SEALS = ("otter", "raven", "badger", "heron", "lynx", "adder", "falcon", "hare", "marten")
LETTERS = 4
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 400, "validation": 40, "test": 100}


class Embassy(TextEnv):
    """A letter's seal says who is to have it; the order of the day says where that office sits today."""

    def __init__(self, horizon: int = LETTERS) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("embassy", "split", split, SPLITS)
        require_known("embassy", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"order-{seed}", "embassy", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        seals = [SEALS[i] for i in rng.permutation(len(SEALS))[: len(ACTIONS)]]
        offices = [list(ACTIONS)[i] for i in rng.permutation(len(ACTIONS))]
        self.office_of = dict(zip(seals, offices, strict=True))
        self.letters = [str(seal) for seal in rng.choice(seals, size=LETTERS)]
        self.delivered = 0

    def apply(self, action):
        if action != best(self):
            return Outcome(-0.25, terminated=True)
        self.delivered += 1
        finished = self.delivered == LETTERS
        return Outcome(0.25, terminated=finished, success=finished)

    def state(self):
        if self.delivered == LETTERS:
            return "All letters are delivered.\n"
        orders = "; ".join(f"the {seal} in the {office}" for seal, office in self.office_of.items())
        return f"Order of the day: {orders}.\nLetter with the seal of the {self.letters[self.delivered]}.\n"

    def legal_actions(self):
        return list(ACTIONS.values())


def best(env):
    """Go where the order of the day says."""
    return ACTIONS[env.office_of[env.letters[env.delivered]]]
