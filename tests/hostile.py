"""What a stranger may send: an environment whose every word attacks the terminal, and code that says when it ran.

Each is the text of a module, which a test writes into a folder of its own.
"""

from __future__ import annotations

import re

NASTY = "\x1b]0;owned\x07\x1b[5;35;7m\x9b2J\x7f\u202e[/y][red]"
"""Sets the title, changes colours in a way that nobody else does, clears the screen, turns the direction of reading,
and is no markup that closes what it opens."""
SHOWN = "\\x1b]0;owned\\x07\\x1b[5;35;7m\\x9b2J\\x7f\\u202e[/y][red]"
"""The same as it may be shown."""

WORLD = f"""
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import Task

NASTY = {NASTY!r}


class World(TextEnv):
    def __init__(self, fault: str = "") -> None:
        super().__init__(horizon=2)
        self.fault = fault

    def tasks(self, split, stage=None):
        return [Task(f"task {{NASTY}} {{split}}", "world", {{"room": split}}, split)]

    def begin(self, task):
        self.tried = 0

    def apply(self, action):
        if self.fault:
            raise RuntimeError(f"broken {{NASTY}}")
        self.tried += 1
        return Outcome(1.0, self.tried == 2, self.tried == 2, (f"event {{NASTY}}",))

    def history(self):
        return ""

    def state(self):
        return f"A room {{NASTY}} \\u00e9\\n"

    def legal_actions(self):
        return [f"on {{NASTY}}", "off"]

    def get_state(self):
        return self.tried

    def set_state(self, state):
        self.tried = state
"""

CODE = """
from pathlib import Path
from corridor import CorridorEnv

Path("imported").touch()


def called(*arguments, **named):
    Path("called").touch()


class Mine(CorridorEnv):
    pass


class Stranger:
    def __init__(self):
        Path("called").touch()
"""
"""Notes in the current folder that it was imported, and that something in it was called."""


def commands(output: bytes) -> list[bytes]:
    """The commands to a terminal that a hostile text would have given: none of them is one that rich gives."""
    return re.findall(rb"\x1b\]|\x07|\xc2\x9b|\x7f|\xe2\x80\xae|\x1b\[5;35;7m|\x1b\[2J", output)
