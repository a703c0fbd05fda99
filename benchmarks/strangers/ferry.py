"""A planning puzzle: five animals must cross a river in a boat with two seats, and some may not be left together."""

from collections import deque
from itertools import combinations

import numpy as np

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

ANIMALS = ("wolf", "goat", "fox", "hen", "cat", "mouse", "dog", "hare", "owl", "frog", "pig", "duck")
PASSENGERS, SEATS, FEUDS = 5, 2, 4
FIRST = {"train": 0, "validation": 10_000, "test": 20_000}
SIZES = {"train": 300, "validation": 40, "test": 100}


class Ferry(TextEnv):
    """Two that quarrel end the trip if they are on a bank that the boat has left. All leave the boat when it lands."""

    def __init__(self, horizon: int = 25) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("ferry", "split", split, SPLITS)
        require_known("ferry", "stage", stage or "full", self.stages)
        seeds = range(FIRST[split], FIRST[split] + SIZES[split])
        return [Task(f"ferry-{seed}", "ferry", {"seed": seed}, split) for seed in seeds]

    def begin(self, task):
        rng = np.random.default_rng(task.payload["seed"])
        self.names, self.feuds, solution = [], [], None
        while solution is None:
            self.names = [ANIMALS[i] for i in rng.choice(len(ANIMALS), size=PASSENGERS, replace=False)]
            pairs = list(combinations(self.names, 2))
            self.feuds = [pairs[i] for i in rng.choice(len(pairs), size=FEUDS, replace=False)]
            solution = plan(self.names, [], "west", self.feuds)
        self.west, self.boat, self.side, self.quarrel = list(self.names), [], "west", ""

    def apply(self, action):
        if action != "cross":
            self.boat = [*self.boat, action.removeprefix("board ")] if action != "empty boat" else []
            return Outcome(-0.01)
        left = [name for name in self.here() if name not in self.boat]
        self.quarrel = next((f"The {a} and the {b} quarrel. " for a, b in self.feuds if a in left and b in left), "")
        if self.quarrel:
            return Outcome(-0.3, terminated=True)
        east = self.side == "west"
        self.west = [name for name in self.names if (name in self.west) != (name in self.boat)]
        gained = len(self.boat) if east else -len(self.boat)
        self.side, self.boat = ("east" if east else "west"), []
        if not self.west:
            return Outcome(1.0, terminated=True, success=True)
        return Outcome(0.1 * gained - 0.01)

    def here(self):
        """Return those on the boat's side, aboard or not."""
        return [name for name in self.names if (name in self.west) == (self.side == "west")]

    def state(self):
        ashore = [name for name in self.names if name not in self.boat]
        west, east = (", ".join(n for n in ashore if (n in self.west) == bank) or "nobody" for bank in (True, False))
        quarrels = ", ".join(f"{a} and {b}" for a, b in self.feuds)
        return (
            f"All must go east; {SEATS} fit into the boat. May not be left together: {quarrels}.\n"
            f"West bank: {west}. East bank: {east}.\n"
            f"{self.quarrel}The boat is at the {self.side} bank. Aboard: {', '.join(self.boat) or 'nobody'}.\n"
        )

    def legal_actions(self):
        free = [name for name in self.here() if name not in self.boat] if len(self.boat) < SEATS else []
        return [*(f"board {name}" for name in free), *(["empty boat"] if self.boat else []), "cross"]


def plan(west, boat, side, feuds, names=None):
    """Return the load of the next crossing on a shortest way east; None if there is no way."""
    everybody = frozenset(names or west)
    start = (frozenset(west), side == "west")
    queue, seen = deque([(start, None)]), {start}
    while queue:
        (at, westward), first = queue.popleft()
        here = at if westward else everybody - at
        for load in (c for size in range(SEATS + 1) for c in combinations(sorted(here), size)):
            if (first is None and not set(boat) <= set(load)) or any({*feud} <= here - {*load} for feud in feuds):
                continue
            after = (at - {*load} if westward else at | {*load}, not westward)
            if not after[0]:
                return load if first is None else first
            if after not in seen:
                seen.add(after)
                queue.append((after, load if first is None else first))
    return None


def best(env):
    """Board the animals of the next crossing of a shortest plan, then cross."""
    load = plan(env.west, env.boat, env.side, env.feuds, env.names)
    if load is None:
        return "empty boat"
    return next((f"board {name}" for name in load if name not in env.boat), "cross")
