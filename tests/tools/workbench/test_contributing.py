"""The patches of docs/contributing.md are what they claim: one file each, short, and they work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import reflectrl

PACKAGE = Path(reflectrl.__file__).parent
ROOT = Path(__file__).parents[3]
PATCHES = dict(
    re.findall(
        r"<!-- patch (\w) -->\n```diff\n(.*?\n)```", (ROOT / "docs" / "contributing.md").read_text("utf-8"), re.S
    )
)
RECIPE = """
name = "tried"
arms = ["reflect-rl"]
env.name = "corridor"
model = {layers = 1, width = 16, heads = 2}
play.reflection_tokens = 4
teach = {tasks = 4, negatives = 0}
sft = {steps = 2, batch_size = 4, eval_every = 2}
rl = {updates = 1, episodes = 2, eval_every = 1, eval_episodes = 2, curriculum = "none"}
eval = {splits = ["test"], episodes = 2}
"""


@pytest.fixture
def patched(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the package with a patch applied."""
    ignore = shutil.ignore_patterns("__pycache__", "wings")
    shutil.copytree(PACKAGE, tmp_path / "src" / "reflectrl", ignore=ignore)
    subprocess.run(["git", "apply", "-p1", "-"], input=PATCHES[request.param], text=True, cwd=tmp_path, check=True)
    (tmp_path / "tried.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def reflectrl_in(folder: Path, *words: str) -> str:
    """What a command prints with the patched package."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "src"), str(ROOT / "tests" / "stranger")])}
    command = [sys.executable, "-m", "reflectrl", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("patch", "most"), [("A", 20), ("B", 30), ("C", 10)])
def test_it_is_short_and_changes_one_file(patch: str, most: int) -> None:
    lines = PATCHES[patch].splitlines()
    changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]
    assert 0 < len(changed) <= most and sum(line.startswith("+++") for line in lines) == 1


@pytest.mark.parametrize("patched", ["A"], indirect=True)
def test_the_new_loss_trains(patched: Path) -> None:
    assert "cispo" in reflectrl_in(patched, "run", "tried.toml", "--dry-run", "--rl.algorithm", "cispo")
    reflectrl_in(patched, "run", "tried.toml", "--rl.algorithm", "cispo")
    assert (patched / "runs" / "tried" / "results.json").exists()


@pytest.mark.parametrize("patched", ["B"], indirect=True)
def test_the_new_environment_keeps_every_promise(patched: Path) -> None:
    assert "every promise is kept" in reflectrl_in(patched, "check-env", "reflectrl.examples.countdown:Countdown")


@pytest.mark.parametrize("patched", ["C"], indirect=True)
def test_the_new_arm_is_trained_and_evaluated(patched: Path) -> None:
    assert "reflect-ppo" in reflectrl_in(patched, "list", "arms")
    reflectrl_in(patched, "run", "tried.toml", "--arms", "reflect-ppo")
    assert '"reflect-ppo"' in (patched / "runs" / "tried" / "results.json").read_text(encoding="utf-8")
