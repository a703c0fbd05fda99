"""A look-up in the text, with the question first and eight entries: at which peg a guest's coat hangs."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

PEGS = ("red", "blue", "green", "white", "black", "brass", "oak", "iron")
GUESTS = ("Alder", "Birch", "Cedar", "Dale", "Elm", "Flint", "Grove", "Heath", "Ivy", "Lark", "Moss", "Reed")
COATS = 4
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 400, "validation": 40, "test": 100}


class CoatCheck(TextEnv):
    """Guests come for their coats, one after another. A wrong coat ends the evening."""

    def __init__(self, horizon: int = COATS) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("coat_check", "split", split, SPLITS)
        require_known("coat_check", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"evening-{seed}", "coat_check", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        guests = [GUESTS[i] for i in rng.permutation(len(GUESTS))[: len(PEGS)]]
        pegs = [PEGS[i] for i in rng.permutation(len(PEGS))]
        self.peg_of = dict(zip(guests, pegs, strict=True))
        self.leaving = [guests[i] for i in rng.permutation(len(guests))[:COATS]]
        self.handed_out = 0

    def apply(self, action):
        if action != best(self):
            return Outcome(-0.25, terminated=True)
        self.handed_out += 1
        finished = self.handed_out == COATS
        return Outcome(0.25, terminated=finished, success=finished)

    def state(self):
        if self.handed_out == COATS:
            return "The room is empty.\n"
        lines = [f"{self.leaving[self.handed_out]} would like to leave. The book of tonight:"]
        lines += [f"- {guest} ({peg} peg)" for guest, peg in self.peg_of.items()]
        return "\n".join(lines) + "\n"

    def legal_actions(self):
        return [f"take the coat from the {peg} peg" for peg in PEGS]


def best(env):
    """Take the coat that the book names."""
    return f"take the coat from the {env.peg_of[env.leaving[env.handed_out]]} peg"
