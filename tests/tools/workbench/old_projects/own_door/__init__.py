"""A door, written by hand for the first version: an unknown split is a KeyError."""

from reflectrl.envs import base, teacher
from reflectrl.types import Task


class DoorTeacher(teacher.Teacher):
    def expert_action(self, env):
        return env.legal_actions().index("left")


class Door(base.TextEnv):
    teacher = DoorTeacher()

    def __init__(self, horizon=4):
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        first = {"train": 0, "validation": 10, "test": 20}[split]
        if stage not in (None, "full"):
            raise ValueError(stage)
        return [Task(f"{split}-{n}", "door", {"n": n}, split) for n in range(first, first + 6)]

    def begin(self, task):
        self.doors = 0

    def apply(self, action):
        self.doors += action == "left"
        won = self.doors == 2
        return base.Outcome(1.0 if won else 0.0, won, won)

    def state(self):
        return f"{self.doors} of 2 doors, task {self.task.payload['n']}.\n"

    def legal_actions(self):
        return ["left", "right"]
