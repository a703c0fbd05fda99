"""Environments that worker processes import: one that rolls dice, one that waits for its neighbour, some that fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import Task, UserError


class Doom(BaseException):
    """Not an Exception."""


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.way = lambda: text


class Unreadable(Exception):
    """Can be pickled, but not read again: its arguments are not those that it takes."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}, {second}")


ERRORS = {"own": Doom("it ends"), "unpicklable": Unpicklable("no way out"), "unreadable": Unreadable("a", "b")}


class Gone:
    """Can be pickled, but not read again."""

    def __reduce__(self) -> Any:
        return vanish, ()


def vanish() -> None:
    raise LookupError("nothing is left of it")


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
        if fault == "leave":
            os._exit(3)
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault in ERRORS:
            raise ERRORS[fault]
        if fault == "orphan" and os.fork() != 0:
            os._exit(5)
        if fault == "orphan":  # the child: it has the worker's pipe, and lives on
            time.sleep(120)
            os._exit(0)
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

    def unreadable(self) -> Any:
        return Gone()

    def end_of_file(self) -> None:
        raise EOFError("the file ended")

    def leave_quietly(self) -> None:
        sys.exit(4)

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


class Loud(str):
    """A text of a class of its own: as good as any."""


ODD: dict[str, tuple[str, Any]] = {
    "no actions": ("legal_actions", ()),
    "one text for actions": ("legal_actions", "on"),
    "no list of actions": ("legal_actions", None),
    "a number for an action": ("legal_actions", ("on", 3)),
    "a surrogate in an action": ("legal_actions", ("on", "\ud800")),
    "a number for a state": ("state", 3),
    "a surrogate in a state": ("state", "a\udfffb\n"),
    "no history": ("history", None),
    "a surrogate in a history": ("history", "\ud83d"),
    "a word for a reward": ("reward", "1"),
    "a truth for a reward": ("reward", True),
    "no reward": ("reward", None),
    "too large a reward": ("reward", 10**400),
    "a reward of nan": ("reward", float("nan")),
    "a complex reward": ("reward", 1j),
    "a number for an end": ("terminated", 1),
    "a word for a success": ("success", "yes"),
    "no success": ("success", None),
    "a number for a truncation": ("truncated", 1),
    "equal actions": ("legal_actions", ("on", "up", "on")),
    "a blank action": ("legal_actions", ("on", " ")),
    "an empty action": ("legal_actions", ("", "up")),
    "an action of two lines": ("legal_actions", ("on", "up\nand away")),
    "one text for events": ("events", "pickup"),
    "a number for an event": ("events", ("pickup", 3)),
    "a set of events": ("events", {"pickup"}),
    "a surrogate in an event": ("events", ("\udc80",)),
    "no outcome": ("outcome", None),
}
"""What a hook or a field of its outcome gives, by a name that fits into a payload."""

FINE: dict[str, tuple[str, Any]] = {
    "a list of actions": ("legal_actions", ["on", "up"]),
    "texts of a class of their own": ("legal_actions", (Loud("on"), Loud("up"))),
    "a text beyond ASCII": ("state", "zurück \N{TAXI}\n"),
    "a whole number for a reward": ("reward", 2),
    "numpy's numbers": ("reward", np.float32(0.5)),
    "numpy's truths": ("success", np.bool_(True)),
    "a list of events": ("events", ["pickup", "zurück"]),
}


class Odd(Dice):
    """Gives something odd from the step that the payload names on: {"odd": name, "at": step}."""

    def odd(self, hook: str, usual: Any) -> Any:
        which, value = (ODD | FINE).get(self.task.payload.get("odd", ""), ("", None))
        return value if which == hook and len(self.rolled) - 1 >= self.task.payload.get("at", 0) else usual

    def apply(self, action: str) -> Any:
        usual = super().apply(action)
        fields = {name: self.odd(name, value) for name, value in vars(usual).items()}
        return self.odd("outcome", Outcome(**fields))

    def history(self) -> Any:
        return self.odd("history", super().history())

    def state(self) -> Any:
        return self.odd("state", super().state())

    def legal_actions(self) -> Any:
        return self.odd("legal_actions", super().legal_actions())
