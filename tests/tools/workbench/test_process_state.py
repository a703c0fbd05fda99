"""An environment that changes its process moves neither a run's files nor its weights, and mutes no message."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.envs import make
from tests.tools.workbench.test_closing import MODULE, TINY

CHANGES = """

import signal, sys, tempfile, torch
from pathlib import Path


MUTE = open(os.devnull, "w")


def change():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr = MUTE
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)


class Changing(Counted):
    def __init__(self, change: bool = True) -> None:
        super().__init__()
        self.change = change
        self.changed("made")

    def changed(self, where):
        if self.change:
            change()
            if where == "made":
                os.chdir(tempfile.mkdtemp())
                Path("note.txt").write_text("mine")
            assert Path("note.txt").read_text() == "mine", "it finds its own files"

    def begin(self, task):
        super().begin(task)
        self.changed("begun")

    def apply(self, action):
        self.changed("played")
        return super().apply(action)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "changing").mkdir()
    source = MODULE.replace('open("log.txt", "a")', "open(os.devnull, 'w')") + CHANGES
    (tmp_path / "changing/__init__.py").write_text(source, encoding="utf-8")
    recipe = 'name = "changing"\nenv.name = "changing:Changing"\nmodel.mixed_precision = "off"\n'
    (tmp_path / "changing/recipe.toml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_process_is_as_before_after_each_call(here: Path) -> None:
    def state() -> list[Any]:
        switches = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state().tolist()
        return [os.getcwd(), signal.getsignal(signal.SIGINT), sys.stdout, sys.stderr, *switches]  # noqa: PTH109

    before = state()
    env = make({"name": "changing:Changing"})
    assert state() == before
    env.reset(seed=0)
    assert state() == before
    env.step(0)
    assert state() == before
    sys.modules.pop("changing").MUTE.close()


def test_a_run_learns_the_same_weights_beside_it(here: Path, command: Callable[..., Any]) -> None:
    weights = []
    for change in ("true", "false"):
        words = ["run", "changing", "--arms", "rl-only", "--env.change", change, "--folder", change, "--no-check"]
        done = command(*words, *TINY)
        assert done.returncode == 0 and f"report: {change}/report.html" in done.stdout, done.stderr
        weights.append((here / change / "checkpoints/seed0/rl-rl-only/model.safetensors").read_bytes())
    assert weights[0] == weights[1]
