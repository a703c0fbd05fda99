"""Routing by written rules: each morning has its own, and five parcels go where the first rule that fits says."""

from itertools import product

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

TRAITS = (("urgent", "normal", "slow"), ("small", "big", "huge"), ("letter", "box", "tube"))
PLACES = ("cellar", "attic", "office", "garage")
PARCELS = 5
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 400, "validation": 40, "test": 100}


class Mailroom(TextEnv):
    """A rule names one trait of a parcel or two. A parcel in the wrong place ends the morning."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("mailroom", "split", split, SPLITS)
        require_known("mailroom", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"morning-{seed}", "mailroom", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        parcels = list(product(*TRAITS))
        places = [PLACES[i] for i in rng.permutation(len(PLACES))]
        self.rules, groups = [], {}
        while len(groups) < len(PLACES):
            conditions = []
            for named in rng.permutation([1, 1, 2]):
                traits = sorted(rng.choice(len(TRAITS), size=named, replace=False).tolist())
                conditions.append([str(rng.choice(TRAITS[trait])) for trait in traits])
            self.rules = list(zip([*conditions, []], places, strict=True))
            groups = {}
            for parcel in parcels:
                groups.setdefault(place_of(parcel, self.rules), []).append(parcel)
        destinations = rng.choice(places, size=PARCELS)
        self.parcels = [groups[place][rng.integers(len(groups[place]))] for place in destinations]
        self.sorted = 0

    def apply(self, action):
        if action != f"put into {place_of(self.parcels[self.sorted], self.rules)}":
            return Outcome(-0.2, terminated=True)
        self.sorted += 1
        finished = self.sorted == PARCELS
        return Outcome(0.2, terminated=finished, success=finished)

    def state(self):
        if self.sorted == PARCELS:
            return "All parcels are sorted.\n"
        lines = ["The first rule that fits counts."]
        for number, (named, place) in enumerate(self.rules, 1):
            lines.append(f"{number}. {' and '.join(named) or 'all else'}: {place}.")
        lines.append(f"Parcel {self.sorted + 1} of {PARCELS}: {' '.join(self.parcels[self.sorted])}.")
        return "\n".join(lines) + "\n"

    def legal_actions(self):
        return [f"put into {place}" for place in PLACES]


def place_of(parcel, rules):
    """Return the place of the first rule whose traits the parcel has."""
    return next(place for named, place in rules if all(trait in parcel for trait in named))


def best(env):
    """Follow the first rule that fits."""
    return f"put into {place_of(env.parcels[env.sorted], env.rules)}"
