"""Environments that worker processes import: one that rolls dice, one that waits for its neighbour, some that fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectrl.envs.base import Outcome, TextEnv
from reflectrl.types import Task, UserError


class Dice(TextEnv):
    """Each step draws from the environment's own generator; the payload says which one goes wrong, and how."""

    def __init__(self, folder: str = "") -> None:
        super().__init__(horizon=5)
        self.folder = folder

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"dice-{i}", "dice", {"length": 1 + i % 5}) for i in range(10)]

    def begin(self, task: Task) -> None:
        self.rolled = [int(self.np_random.integers(100))]
        self._fail("begin")

    def apply(self, action: str) -> Outcome:
        self.rolled.append(int(self.np_random.integers(100)))
        self._fail(f"step {len(self.rolled) - 1}")
        return Outcome(self.rolled[-1] / 7, terminated=len(self.rolled) > self.task.payload["length"])

    def _fail(self, where: str) -> None:
        fault = self.task.payload.get(where)
        if fault == "raise":
            raise RuntimeError("the world\nis on fire")
        if fault == "mistake":
            raise UserError("no such folder")
        if fault == "exit":
            sys.exit(3)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def history(self) -> str:
        return "".join(f"{number}\n" for number in self.rolled[:-1])

    def state(self) -> str:
        return f"{self.rolled[-1]}\n"

    def legal_actions(self) -> Sequence[str]:
        return ("on", "up", "down")[: 2 + self.rolled[-1] % 2]

    def get_state(self) -> Any:
        return tuple(self.rolled)

    def set_state(self, state: Any) -> None:
        self.rolled = list(state)

    def imported(self, name: str) -> bool:
        return name in sys.modules

    def process(self) -> int:
        return os.getpid()

    def unsendable(self) -> Any:
        return lambda: None

    def crash(self) -> None:
        raise KeyError("bug")

    def close(self) -> None:
        if self.folder:
            (Path(self.folder) / f"closed-{os.getpid()}-{id(self)}").touch()


class Meeting(Dice):
    """Begins, and steps, only while another one does so too: alone it waits in vain."""

    def begin(self, task: Task) -> None:
        super().begin(task)
        self._meet(0)

    def apply(self, action: str) -> Outcome:
        outcome = super().apply(action)
        self._meet(len(self.rolled))
        return outcome

    def _meet(self, when: int) -> None:
        here, there = (Path(self.folder) / f"{who}-{when}" for who in ("ab" if self.task.id == "a" else "ba"))
        here.touch()
        end = time.monotonic() + 20
        while not there.exists():
            if time.monotonic() > end:
                raise TimeoutError("nobody came")
            time.sleep(0.001)


class Stuck(Dice):
    """Says that it steps, and never comes back."""

    def apply(self, action: str) -> Outcome:
        Path(self.folder, f"stuck-{os.getpid()}").touch()
        time.sleep(600)
        raise AssertionError


def unreadable(path: str) -> TextEnv:
    raise OSError(f"cannot read {path}")
