"""`play` runs no code of a stranger's that is not named in this command or trusted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.models.cards import CARD
from tests.test_trust import ENV, Write, ran, refused

MODEL_CODE = """
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel

Path("imported").touch()


class Config(GPT2Config):
    model_type = "stranger"


class Model(GPT2LMHeadModel):
    config_class = Config
"""


@pytest.mark.parametrize(("name", "what"), [("called", "a function"), ("Stranger", "the class Stranger")])
def test_what_is_no_environment_is_not_called(write: Write, capsys: Any, name: str, what: str) -> None:
    write("")
    assert main(["play", f"stranger:{name}"]) == 2
    assert f"must be a class derived from TextEnv; it is {what}" in capsys.readouterr().err
    assert ran() == ["imported"]


def test_a_plug_in_of_the_current_folder_is_found_nevertheless(write: Write) -> None:
    words = ["-P", "-m", "reflectrl", "play", "stranger:Mine", "--player", "random"]
    assert subprocess.run([sys.executable, *words], check=False).returncode == 0


@pytest.fixture
def theirs(write: Write, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: Any) -> Path:
    """A run folder whose policy brings code."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    folder = write('arms = ["sft-no-reflection"]\nmodel = {trust_remote_code = true, device = "cpu"}').parent
    policy = folder / "checkpoints" / "seed0" / "plain"
    shutil.copytree(tiny_folder("gpt2"), policy)
    config = json.loads((policy / "config.json").read_text())
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (policy / "config.json").write_text(json.dumps(config | {"model_type": "stranger", "auto_map": own}))
    (policy / "own.py").write_text(MODEL_CODE)
    (policy / CARD).write_text(json.dumps({"tokenizer": "?"}))
    return folder


def test_play_does_not_obey_the_run_folder(theirs: Path, command: Any) -> None:
    done = command("play", "corridor", "--player", f"{theirs}:sft-no-reflection")
    assert done.returncode == 2 and "the own code of model" in done.stderr and "--trust" in done.stderr
    assert done.stderr.count("\n") == 1 and not ran()


def test_play_runs_it_for_who_trusts_it(theirs: Path, command: Any) -> None:
    command("play", "corridor", "--player", f"{theirs}:sft-no-reflection", "--trust")
    assert ran() == ["imported"]


def test_the_environment_that_a_run_folder_names_does_not_matter_to_play(write: Write, capsys: Any) -> None:
    line = refused(capsys, "play", "corridor", "--player", f"{write(ENV).parent}:sft")
    assert "is not trained yet" in line
