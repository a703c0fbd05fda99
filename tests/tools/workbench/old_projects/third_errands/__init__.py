"""Errands: fetch a parcel from one room and bring it to another. Make a world of your own of it: each EDIT says how."""

from itertools import product

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.types import Task

ROOMS = ("hall", "kitchen", "office", "garden", "cellar", "attic")


class ThirdErrands(TextEnv):
    # EDIT: arguments are keys of [env] in recipe.toml. The horizon is the largest number of steps of an episode.
    def __init__(self, horizon: int = 12) -> None:
        super().__init__(horizon)
        errands = [rooms for rooms in product(ROOMS, repeat=3) if rooms[1] != rooms[2]]  # you, the parcel, its goal
        self.errands = divide(errands, {"train": 110, "validation": 30, "test": 40}, "third_errands")

    # EDIT: all instances of a split. What differs between them is in the payload, as JSON values. None is in two splits,
    # since success on "test" is to say how players do where they have not been.
    def tasks(self, split, stage=None):
        require_known("third_errands", "split", split, SPLITS)
        require_known("third_errands", "stage", stage or "full", self.stages)
        return [Task("-".join(rooms), "third_errands", {"rooms": list(rooms)}, split) for rooms in self.errands[split]]

    # EDIT: the world at the start of a task. Luck, if there is any, comes from self.np_random.
    def begin(self, task):
        self.room, self.parcel, self.goal = task.payload["rooms"]

    # EDIT: what an action does: its reward, whether the episode ends, whether it is won, and events to be counted.
    # Rewards on the way (here, for taking the parcel) let reward alone teach a lot sooner.
    def apply(self, action):
        if action in ROOMS:
            self.room = action
        elif action == "take" and self.parcel == self.room:
            self.parcel = "you"
            return Outcome(0.3, events=("taken",))
        elif action == "drop" and self.parcel == "you":
            self.parcel = self.room
            delivered = self.room == self.goal
            return Outcome(1.0 if delivered else -0.3, terminated=delivered, success=delivered)
        return Outcome(-0.05)

    # EDIT: the text that players see. Whatever matters has to be in it; short and regular text is learned soonest.
    def state(self):
        parcel = "is in your hands" if self.parcel == "you" else f"lies {self.place(self.parcel)}"
        return f"You are in the {self.room}. The parcel {parcel} and belongs {self.place(self.goal)}.\n"

    def place(self, room):
        return "here" if room == self.room else f"in the {room}"

    # EDIT: the actions that may be chosen now: at least one, each of them one line.
    def legal_actions(self):
        return (*ROOMS, "take", "drop")
