"""The smallest complete environment: reflectrl play reflectrl.examples.add_up:AddUp --player human"""

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task


class AddUp(TextEnv):
    """Add 1, 3 or 5 at a time until the sum is the goal. A larger sum loses."""

    def __init__(self, horizon: int = 12) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        require_known("add-up", "split", split, SPLITS)
        require_known("add-up", "stage", stage or "full", self.stages)
        return [Task(f"add-up-{n}", "add-up", {"goal": n}, split) for n in range(10 + SPLITS.index(split), 40, 3)]

    def begin(self, task):
        self.sum, self.goal = 0, task.payload["goal"]

    def apply(self, action):
        self.sum += int(action)
        return Outcome(float(self.sum == self.goal) - 0.1, self.sum >= self.goal, self.sum == self.goal)

    def state(self):
        return f"The sum is {self.sum}, the goal {self.goal}: {self.goal - self.sum} to go.\n"

    def legal_actions(self):
        return ("1", "3", "5")
