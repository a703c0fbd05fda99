"""Deduction by elimination: witnesses say what the thief did not wear, until only one of six suspects is left."""

from itertools import product

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
WORN = {"hat": ("red", "blue", "straw"), "coat": ("long", "short", "torn"), "bag": ("black", "green", "paper")}
CASES = 2
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 300, "validation": 40, "test": 100}


class Detective(TextEnv):
    """A question costs a little, and rules out one kind of hat, coat or bag. Two cases must be solved in a row."""

    def __init__(self, horizon: int = 18) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("detective", "split", split, SPLITS)
        require_known("detective", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"theft-{seed}", "detective", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        looks = list(product(*WORN.values()))
        self.cases = []
        for _ in range(CASES):
            worn = [looks[i] for i in rng.choice(len(looks), size=len(NAMES), replace=False)]
            thief = int(rng.integers(len(NAMES)))
            denied = {}
            for garment, own in zip(WORN, worn[thief], strict=True):
                others = [value for value in WORN[garment] if value != own]
                denied[garment] = [others[i] for i in rng.permutation(len(others))]
            self.cases.append((worn, thief, denied))
        self.solved, self.clues = 0, []

    def apply(self, action):
        _, thief, denied = self.cases[self.solved]
        if action.startswith("ask"):
            garment = action.removeprefix("ask about ")
            count = sum(earlier == garment for earlier, _ in self.clues)
            self.clues.append((garment, denied[garment][count]))
            return Outcome(-0.02)
        if action != f"accuse {NAMES[thief]}":
            return Outcome(-0.5, terminated=True)
        self.solved, self.clues = self.solved + 1, []
        if self.solved == CASES:
            return Outcome(1.0, terminated=True, success=True)
        return Outcome(0.4, events=("case",))

    def state(self):
        if self.solved == CASES:
            return "Both thieves are in prison.\n"
        lines = [f"Case {self.solved + 1} of {CASES}. One of six is the thief."]
        for name, looks in zip(NAMES, self.cases[self.solved][0], strict=True):
            lines.append(
                f"{name}: " + ", ".join(f"{look} {garment}" for look, garment in zip(looks, WORN, strict=True))
            )
        statements = [f"The thief had no {value} {garment}." for garment, value in self.clues]
        return "\n".join([*lines, "Witnesses: " + (" ".join(statements) or "not asked yet.")]) + "\n"

    def legal_actions(self):
        if self.solved == CASES:
            return []
        left = [
            garment for garment, values in WORN.items() if sum(t == garment for t, _ in self.clues) < len(values) - 1
        ]
        return [*(f"ask about {garment}" for garment in left), *(f"accuse {name}" for name in NAMES)]


def best(env):
    """Accuse the only suspect left; until then, ask about what differs most among those who are left."""
    suspects = [dict(zip(WORN, looks, strict=True)) for looks in env.cases[env.solved][0]]
    left = [i for i, worn in enumerate(suspects) if all(worn[garment] != value for garment, value in env.clues)]
    if len(left) == 1:
        return f"accuse {NAMES[left[0]]}"
    return f"ask about {max(WORN, key=lambda garment: len({suspects[i][garment] for i in left}))}"
