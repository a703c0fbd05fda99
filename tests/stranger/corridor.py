"""A stranger's package with one environment, which the core's tests play: no task family of ours is needed.

Corridor: fetch the key, then open the door. Walking off an end, taking nothing and opening without the key end it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from reflectrl.core.envs.base import Outcome, TextEnv, require_known
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Observation, Task, UserError, named_seed

ACTIONS = ("left", "right", "take", "open")
RULES = "Fetch the key K, then open the door D. You are A; what is impossible ends the walk.\n"


class CorridorTeacher(Teacher):
    """Sees everything; what it writes of is what the text shows."""

    def expert_action(self, env: Any) -> int:
        return env.legal_actions().index(env.best())

    def analyse(self, env: Any) -> str:
        what = "door" if env.has_key else "key"
        return f"The {what} comes next. Next: {env.best()}."

    def baseline_action(self, env: Any) -> int:
        return env.legal_actions().index("right" if env.place < env.length - 1 else "left")


class CorridorEnv(TextEnv):
    """A row of cells with a key and a door somewhere.

    Args:
        length: cells, at least 3.
        train, validation, test: tasks per split.
        slippery: one move in three leads nowhere.
        impossible: what cannot be done is offered, and ends the walk; or it is hidden from the list of actions.
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
        slippery: bool = False,
        impossible: Literal["offered", "hidden"] = "offered",
        history: bool = False,
        rules: bool = False,
        horizon: int = 0,
    ) -> None:
        if length < 3:
            raise UserError(f"corridor: length must be at least 3, not {length}")
        super().__init__(horizon or 4 * length)
        self.length, self.show_history, self.rules = length, history, rules
        self.slippery, self.impossible = slippery, impossible
        self.sizes = {"train": train, "validation": validation, "test": test}

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        stage = stage or self.stages[-1]
        require_known("corridor", "split", split, list(self.sizes))
        require_known("corridor", "stage", stage, self.stages)
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
        if not self._possible(action):
            return Outcome(-0.5, terminated=True, events=("illegal",))
        if action == "take":
            self.has_key = True
            won = self.task.stage == "key"
            return Outcome(1.0, terminated=won, success=won, events=("key",))
        if action == "open":
            return Outcome(1.0, terminated=True, success=True, events=("opened",))
        if not (self.slippery and self.np_random.random() < 1 / 3):
            self.place += 1 if action == "right" else -1
        return Outcome(-0.05)

    def best(self) -> str:
        """The next action of a shortest way."""
        goal, there = (self.door, "open") if self.has_key else (self.key, "take")
        return there if self.place == goal else "right" if self.place < goal else "left"

    def _possible(self, action: str) -> bool:
        if action in ("left", "right"):
            return self.place != (self.length - 1 if action == "right" else 0)
        return (
            self.place == self.key and not self.has_key
            if action == "take"
            else self.place == self.door and self.has_key
        )

    def history(self) -> str:
        return self.past

    def state(self) -> str:
        return f"{self._drawn()}Last: {self.last}\n"

    def legal_actions(self) -> Sequence[str]:
        return ACTIONS if self.impossible == "offered" else tuple(filter(self._possible, ACTIONS))

    @classmethod
    def read_question(cls, state: Any, instructions: Any, options: Sequence[str]) -> tuple[Observation, list[int]]:
        """Clients that know the row but not our words for it send `{"row": ["A", ".", "K", "D"]}`."""
        seen = Observation("", f"{' '.join(state['row'])}\nLast: none\n", ACTIONS)
        return seen, [ACTIONS.index(option) for option in options]

    def _drawn(self) -> str:
        marks = ["."] * self.length
        marks[self.door] = "D"
        if not self.has_key:
            marks[self.key] = "K"
        marks[self.place] = "a" if self.has_key else "A"
        return f"{' '.join(marks)}\n"
