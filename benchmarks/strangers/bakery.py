"""Two stages: collect what an order needs from four shelves, then bake it for as long as its kind takes."""

from itertools import product
from typing import ClassVar

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.types import Task

DOUGH = {"bread": "rye", "cake": "wheat", "pie": "oats", "bun": "corn"}
HEAT = {"small": 1, "middle": 2, "large": 3}
TOPS = ("salt", "sugar", "seeds", "none")


class Bakery(TextEnv):
    """Flour depends on the kind, minutes in the oven on the size. Nothing says how; only reward does."""

    stages: ClassVar = ("mixed", "full")
    milestones: ClassVar = {"mixed": "mixed"}

    def __init__(self, horizon: int = 12) -> None:
        super().__init__(horizon)
        orders = list(product(DOUGH, HEAT, TOPS))
        self.orders = divide(orders, {"train": 30, "validation": 8, "test": 10}, "bakery")

    def tasks(self, split, stage=None):
        require_known("bakery", "split", split, SPLITS)
        require_known("bakery", "stage", stage or "full", self.stages)
        name = stage or "full"
        return [Task("-".join(order), "bakery", {"order": list(order)}, split, name) for order in self.orders[split]]

    def begin(self, task):
        self.kind, self.size, self.top = task.payload["order"]
        self.bowl, self.minutes = [], -1

    def apply(self, action):
        verb, _, rest = action.partition(" ")
        if verb == "add":
            self.bowl.append(rest)
        elif action == "into the oven":
            mixed = self.bowl == [DOUGH[self.kind], *([self.top] if self.top != "none" else [])]
            if not mixed:
                return Outcome(-0.3, terminated=True)
            self.minutes = 0
            only = self.task.stage == "mixed"
            return Outcome(0.3, terminated=only, success=only, events=("mixed",))
        elif action == "wait":
            self.minutes += 1
        else:
            right = self.minutes == HEAT[self.size]
            return Outcome(1.0 if right else -0.3, terminated=True, success=right)
        return Outcome(-0.01)

    def state(self):
        top = "" if self.top == "none" else f" with {self.top}"
        oven = "cold" if self.minutes < 0 else f"on for {self.minutes} minutes"
        return f"Order: a {self.size} {self.kind}{top}.\nBowl: {', '.join(self.bowl) or 'empty'}. The oven is {oven}.\n"

    def legal_actions(self):
        if self.minutes >= 0:
            return ["wait", "take out"]
        left = [name for name in (*DOUGH.values(), *TOPS[:3]) if name not in self.bowl]
        return [*(f"add {name}" for name in left), "into the oven"]


def best(env):
    """Return the next step of the recipe."""
    if env.minutes >= 0:
        return "wait" if env.minutes < HEAT[env.size] else "take out"
    needed = [DOUGH[env.kind], *([env.top] if env.top != "none" else [])]
    return f"add {needed[len(env.bowl)]}" if len(env.bowl) < len(needed) else "into the oven"
