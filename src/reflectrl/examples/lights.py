"""An environment where memory decides: lights are shown one by one, and then have to be pressed in the same order.

    python src/reflectrl/examples/lights.py

lets the expert play a task, and prints the notes that a reflector has to keep (`play.reflection = "carried"`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Task, UserError

COLOURS = ("red", "green", "blue", "white")


class LightsTeacher(Teacher):
    """Teacher that remembers what was shown."""

    def expert_action(self, env: LightsEnv) -> int:
        return 0 if env.is_showing else COLOURS.index(env.lights[env.pressed])

    def analyse(self, env: LightsEnv) -> str:
        """Return the lights that were shown and not pressed yet, in order."""
        return " ".join(env.lights[env.pressed : env.shown])


class LightsEnv(TextEnv):
    """Watch all lights, then press the buttons in their order. A wrong button ends the episode.

    Args:
        length: number of lights, 2 to 5.
    """

    teacher = LightsTeacher()

    def __init__(self, length: int = 4) -> None:
        if not 2 <= length <= 5:
            raise UserError(f"lights: length must be 2 to 5, not {length}")
        super().__init__(2 * length)
        self.length = length

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("lights", "split", split, SPLITS)
        require_known("lights", "stage", stage or "full", self.stages)
        orders = [" ".join(order) for order in product(COLOURS, repeat=self.length)]
        tenth = max(1, len(orders) // 10)
        sizes = {"train": len(orders) - 4 * tenth, "validation": tenth, "test": 3 * tenth}
        split_orders = divide(orders, sizes, "lights", self.length)[split]
        return [Task(order.replace(" ", "-"), "lights", {"lights": order}, split) for order in split_orders]

    def begin(self, task: Task) -> None:
        self.lights = task.payload["lights"].split()
        self.shown, self.pressed, self.is_showing = 1, 0, True

    def apply(self, action: str) -> Outcome:
        if self.is_showing:
            # The last light and the first button share no observation, so every press needs the notes.
            self.is_showing = self.shown < self.length
            self.shown += self.is_showing
            return Outcome(0.0)
        right = action == self.lights[self.pressed]
        self.pressed += right
        won = self.pressed == self.length
        return Outcome(float(won), terminated=won or not right, success=won)

    def state(self) -> str:
        if self.is_showing:
            return f"Light {self.shown} of {self.length}: {self.lights[self.shown - 1]}\n"
        return f"Press button {self.pressed + 1} of {self.length}.\n"

    def legal_actions(self) -> Sequence[str]:
        return ("watch",) if self.is_showing else COLOURS


if __name__ == "__main__":
    env = LightsEnv()
    env.reset(seed=0)
    while not env.done:
        action = env.legal_actions()[env.teacher.expert_action(env)]
        print(f"{env.state()}  notes: {env.teacher.analyse(env)}\n> {action}")
        env.step(env.legal_actions().index(action))
