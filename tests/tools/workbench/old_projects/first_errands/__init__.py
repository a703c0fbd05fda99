"""Errands: fetch a parcel from one room and bring it to another. Replace this world by yours."""

from itertools import permutations

from reflectrl.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.types import Task

ROOMS = ("hall", "kitchen", "office", "garden", "cellar", "attic")


class FirstErrands(TextEnv):
    def __init__(self, horizon: int = 12) -> None:
        super().__init__(horizon)
        errands = list(permutations(ROOMS, 3))  # where you start, where the parcel lies, where it belongs
        self._errands = divide(errands, {"train": 80, "validation": 20, "test": 20}, "first_errands")

    def tasks(self, split, stage=None):
        require_known("first_errands", "split", split, SPLITS)
        require_known("first_errands", "stage", stage or "full", self.stages)
        return [Task("-".join(e), "first_errands", {"errand": list(e)}, split) for e in self._errands[split]]

    def begin(self, task):
        self.room, self.parcel, self.goal = task.payload["errand"]

    def apply(self, action):
        if action.startswith("go to "):
            self.room = action.removeprefix("go to ")
        elif action == "take" and self.parcel == self.room:
            self.parcel = "you"
            return Outcome(0.3, events=("taken",))
        elif action == "drop" and self.parcel == "you":
            self.parcel = self.room
            delivered = self.room == self.goal
            return Outcome(1.0 if delivered else -0.3, delivered, delivered)
        return Outcome(-0.05)

    def state(self):
        holder = "You carry the parcel" if self.parcel == "you" else f"The parcel lies in the {self.parcel}"
        return f"You are in the {self.room}. {holder}. It belongs in the {self.goal}.\n"

    def legal_actions(self):
        return (*(f"go to {room}" for room in ROOMS), "take", "drop")
