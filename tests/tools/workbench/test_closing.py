"""Every environment that a command makes is closed, also after an error and after Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.envs import make
from reflectrl.core.open_environments import closing_environments

MODULE = '''
import os, time
from reflectrl import Outcome, Task, TextEnv, UserError

COUNT = 0


def note(what):
    with open("log.txt", "a") as file:
        file.write(f"{what}\\n")


class Counted(TextEnv):
    """Notes when it is made and closed. Raises after a number of steps in this process; waits with `waits`."""

    def __init__(self, raises: int = 0, waits: int = 0, horizon: int = 4) -> None:
        super().__init__(horizon)
        self.raises, self.waits = raises, waits
        note("made")

    def __setstate__(self, state):
        self.__dict__.update(state)
        note("made")

    def close(self):
        note("closed")
        super().close()

    def tasks(self, split, stage=None):
        assert stage in (None, "full")
        first = {"train": 0, "validation": 10, "test": 20}[split]
        return [Task(f"{split}-{n}", "counted", {"n": n}, split) for n in range(first, first + 6)]

    def begin(self, task):
        self.doors = 0

    def apply(self, action):
        global COUNT
        COUNT += 1
        if self.raises and COUNT > self.raises:
            raise RuntimeError("no more")
        if self.waits and COUNT > self.waits:
            note("waits")
            time.sleep(60)
        self.doors += action == "left"
        won = self.doors == 2
        return Outcome(1.0 if won else 0.0, won, won)

    def state(self):
        return f"{self.doors} doors, {self.task.payload['n']}.\\n"

    def legal_actions(self):
        return ["left", "right"]
'''
NAME = "counted:Counted"
TINY = [
    *("--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--rl.updates", "2", "--rl.episodes", "4"),
    *("--rl.eval_every", "1", "--rl.eval_episodes", "2", "--eval.episodes", "2", "--rl.own_wins", "4"),
]
COMMANDS = {
    "run": ["run", "counted", "--arms", "random,rl-only", *TINY],
    "run with workers": ["run", "counted", "--arms", "random,rl-only", "--env_workers", "2", "--no-check", *TINY],
    "run that fails": ["run", "counted", "--arms", "random,rl-only", "--no-check", "--env.raises", "40", *TINY],
    "run that is refused": ["run", "counted", "--env.raises", "5", *TINY],
    "check-env": ["check-env", NAME],
    "check-env that fails": ["check-env", NAME, "--raises", "300"],
    "play": ["play", NAME, "--player", "random", "--episodes", "3"],
    "play that fails": ["play", NAME, "--player", "random", "--raises", "1"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "counted").mkdir()
    (tmp_path / "counted/__init__.py").write_text(MODULE, encoding="utf-8")
    recipe = 'name = "counted"\nenv.name = "counted:Counted"\nmodel.mixed_precision = "off"\n'
    (tmp_path / "counted/recipe.toml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def counts(folder: Path) -> tuple[int, int]:
    """Return the numbers of environments that were made and closed."""
    lines = (folder / "log.txt").read_text(encoding="utf-8").splitlines()
    return lines.count("made"), lines.count("closed")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_made_is_closed_once(here: Path, command: Callable[..., Any], name: str) -> None:
    done = command(*COMMANDS[name])
    assert done.returncode == (2 if "fails" in name or "refused" in name else 0), done.stderr
    made, closed = counts(here)
    assert made == closed > 0


@pytest.mark.parametrize("further", [[], ["--processes", "2"]], ids=["here", "in processes"])
def test_what_is_made_is_closed_after_ctrl_c(here: Path, further: list[str]) -> None:
    words = [*("run", "counted", "--arms", "random,rl-only", "--no-check", "--env.waits", "8"), *TINY, *further]
    running = subprocess.Popen([sys.executable, "-m", "reflectrl", *words], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while time.monotonic() < end and not ((here / "log.txt").exists() and "waits" in (here / "log.txt").read_text()):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    made, closed = counts(here)
    assert made == closed > 0


def test_a_class_that_cannot_be_closed_does_not_keep_others_open(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(here)
    with closing_environments():
        first, second = make({"name": NAME}), make({"name": NAME})
        second.doors = 1
        monkeypatch.setattr(type(second), "close", lambda env: 1 / 0 if hasattr(env, "doors") else note(env))
        closed = []
        note = closed.append
    assert closed == [first]
    assert "environment Counted cannot be closed: ZeroDivisionError" in caplog.text
    del sys.modules["counted"]
