"""A look-up in the text, value before key: which remedy helps against what a patient has."""

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

REMEDIES = ("mint", "honey", "ginger", "sage", "clay")
AILMENTS = ("cough", "fever", "hiccups", "cramp", "rash", "chills", "headache", "sunburn", "toothache", "vertigo")
PATIENTS = 5
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 400, "validation": 40, "test": 100}


class Apothecary(TextEnv):
    """Each day another doctor writes the list of remedies. A wrong remedy ends the day."""

    def __init__(self, horizon: int = PATIENTS) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("apothecary", "split", split, SPLITS)
        require_known("apothecary", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"day-{seed}", "apothecary", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        ailments = [AILMENTS[i] for i in rng.permutation(len(AILMENTS))[: len(REMEDIES)]]
        remedies = [REMEDIES[i] for i in rng.permutation(len(REMEDIES))]
        self.remedy_of = dict(zip(ailments, remedies, strict=True))
        self.patients = [str(ailment) for ailment in rng.choice(ailments, size=PATIENTS)]
        self.treated = 0

    def apply(self, action):
        if action != best(self):
            return Outcome(-0.2, terminated=True)
        self.treated += 1
        finished = self.treated == PATIENTS
        return Outcome(0.2, terminated=finished, success=finished)

    def state(self):
        if self.treated == PATIENTS:
            return "Everybody has been treated.\n"
        lines = [f"{remedy.capitalize()} is for {ailment}." for ailment, remedy in self.remedy_of.items()]
        lines.append(f"The next patient has a case of {self.patients[self.treated]}.")
        return "\n".join(lines) + "\n"

    def legal_actions(self):
        return [f"give {remedy}" for remedy in REMEDIES]


def best(env):
    """Give what the list says."""
    return f"give {env.remedy_of[env.patients[env.treated]]}"
