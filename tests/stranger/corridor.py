"""A stranger's package with one environment, which the core's tests play: no task family of ours is needed.

Corridor: fetch the key, then open the door. Walking off an end, taking nothing and opening without the key end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from reflectrl.envs.base import Outcome, TextEnv
from reflectrl.envs.teacher import Teacher
from reflectrl.types import Task, UserError, named_seed

ACTIONS = ("left", "right", "take", "open")
RULES = "Fetch the key K, then open the door D. You are A; what is impossible ends the walk.\n"


class CorridorTeacher(Teacher):
    """Sees everything; what it writes of is what the text shows."""

    def expert_action(self, env: Any) -> int:
        goal = env.door if env.has_key else env.key
        if env.place == goal:
            return ACTIONS.index("open" if env.has_key else "take")
        return ACTIONS.index("right" if env.place < goal else "left")

    def analyse(self, env: Any) -> str:
        what = "door" if env.has_key else "key"
        return f"The {what} comes next. Next: {ACTIONS[self.expert_action(env)]}."

    def baseline_action(self, env: Any) -> int:
        return ACTIONS.index("right" if env.place < env.length - 1 else "left")


class CorridorEnv(TextEnv):
    """A row of cells with a key and a door somewhere.

    Args:
        length: cells, at least 3.
        train, validation, test: tasks per split.
        history: show the past.
        rules: show the rules.
        horizon: 0 takes four times the length.
    """

    stages: ClassVar[tuple[str, ...]] = ("key", "full")
    milestones: ClassVar[dict[str, str]] = {"key": "key"}
    teacher: ClassVar[Teacher] = CorridorTeacher()

    def __init__(
        self,
        length: int = 5,
        train: int = 40,
        validation: int = 10,
        test: int = 20,
        history: bool = False,
        rules: bool = False,
        horizon: int = 0,
    ) -> None:
        if length < 3:
            raise UserError(f"corridor: length must be at least 3, not {length}")
        super().__init__(horizon or 4 * length)
        self.length, self.show_history, self.rules = length, history, rules
        self.sizes = {"train": train, "validation": validation, "test": test}

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        stage = stage or self.stages[-1]
        if split not in self.sizes or stage not in self.stages:
            raise UserError(f"corridor: unknown split {split!r} or stage {stage!r}")
        first = 1000 * list(self.sizes).index(split)
        return [
            Task(f"corridor-{stage}-{first + i}", "corridor", {"map": first + i}, split, stage)
            for i in range(self.sizes[split])
        ]

    def begin(self, task: Task) -> None:
        cells = sorted(range(self.length), key=lambda cell: named_seed("corridor", task.payload["map"], cell))
        self.place, self.key, self.door = cells[:3]
        self.has_key, self.last, self.past = False, "none", RULES if self.rules else ""

    def apply(self, action: str) -> Outcome:
        if self.show_history:
            self.past += f"{self._drawn()}> {action}\n"
        self.last = action
        if action in ("left", "right"):
            to = self.place + (1 if action == "right" else -1)
            if 0 <= to < self.length:
                self.place = to
                return Outcome(-0.05)
        elif action == "take" and self.place == self.key and not self.has_key:
            self.has_key = True
            won = self.task.stage == "key"
            return Outcome(1.0, terminated=won, success=won, events=("key",))
        elif action == "open" and self.place == self.door and self.has_key:
            return Outcome(1.0, terminated=True, success=True, events=("opened",))
        return Outcome(-0.5, terminated=True, events=("illegal",))

    def history(self) -> str:
        return self.past

    def state(self) -> str:
        return f"{self._drawn()}Last: {self.last}\n"

    def legal_actions(self) -> Sequence[str]:
        return ACTIONS

    def _drawn(self) -> str:
        marks = ["."] * self.length
        marks[self.door] = "D"
        if not self.has_key:
            marks[self.key] = "K"
        marks[self.place] = "a" if self.has_key else "A"
        return f"{' '.join(marks)}\n"
