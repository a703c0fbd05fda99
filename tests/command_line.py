"""What tests of the command line share: an environment beside which commands are run, and how one is refused."""

import pytest

from reflectrl.cli import main

PLUGIN = '''
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import Task


class Lamp(TextEnv):
    """Switch the lamp on. `fault` names a method that raises."""

    def __init__(self, fault: str = "", size: int = 1) -> None:
        super().__init__(horizon=3)
        self.fault, self.on = fault, False
        self.fail("__init__")

    def fail(self, where: str) -> None:
        if where == self.fault:
            raise RuntimeError(f"broken in\\n{where}")

    def tasks(self, split, stage=None):
        from reflectrl.core.types import UserError
        if split not in ("train", "validation", "test") or stage not in (None, "full"):
            raise UserError("no such tasks")
        return [Task(f"lamp-{split}", "lamp", {"room": split}, split)]

    def begin(self, task):
        self.fail("reset")
        self.on = False

    def apply(self, action):
        self.fail("step")
        self.on = action == "on" and self.fault != "deaf"
        return Outcome(1.0 if self.on else 0.0, self.on, self.on)

    def history(self):
        return ""

    def state(self):
        return f"The lamp is {'on' if self.on else 'off'}. \\x1b[31m"

    def legal_actions(self):
        return ["wait", "on"]

    def get_state(self):
        return self.on

    def set_state(self, state):
        self.on = state
'''


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr with which words are refused."""
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1 and err.endswith("\n"), err
    return err
