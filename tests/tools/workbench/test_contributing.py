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
    """A copy of the package, with what Python has compiled of it, and a patch applied."""
    shutil.copytree(PACKAGE, tmp_path / "src" / "reflectrl", ignore=shutil.ignore_patterns("wings"))
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


@pytest.mark.parametrize(("patch", "most"), [("A", 20), ("B", 30), ("C", 10), ("D", 120)])
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


FILTERED = ("--filtered.rounds", "1", "--filtered.episodes", "1", "--filtered.steps", "1", "--arms", "filtered")


@pytest.mark.parametrize("patched", ["D"], indirect=True)
def test_the_new_method_is_found_in_its_folder_trained_and_evaluated(patched: Path) -> None:
    assert "filtered.rounds" in reflectrl_in(patched, "list", "keys")
    reflectrl_in(patched, "run", "tried.toml", *FILTERED)
    assert '"filtered"' in (patched / "runs" / "tried" / "results.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("patched", ["D"], indirect=True)
def test_the_same_file_is_a_method_of_a_strangers_package(patched: Path) -> None:
    (patched / "src/reflectrl/methods/filtered.py").rename(patched / "src/strangers_method.py")
    info = patched / "src" / "strangers_method-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers-method\nVersion: 1\n", encoding="utf-8")
    points = "[reflectrl.methods]\nfiltered = strangers_method\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    assert "imitation of its own wins" in reflectrl_in(patched, "list", "arms")
    planned = reflectrl_in(patched, "run", "tried.toml", "--dry-run", *FILTERED)
    assert "filtered filtered (seed 0): missing; from sft plain" in planned


def test_the_walk_to_the_loss_names_what_there_is_and_each_file_leads_to_the_next() -> None:
    text = (ROOT / "docs" / "contributing.md").read_text("utf-8")
    rows = re.findall(r"^\| `(src/\S+\.py)` \| `([\w.]+)`.* \|(?: `(\w+)`)? *\|$", text, re.M)
    assert 2 < len(rows) <= 7, "six hops at most"
    for (path, name, leads_to), (following, *_) in zip(rows, [*rows[1:], ("", "", "")], strict=True):
        code = (ROOT / path).read_text("utf-8")
        assert re.search(rf"^ *(def|class) {name.split('.')[0]}\b", code, re.M), f"{path} has no {name}"
        if leads_to:
            target = (ROOT / following).read_text("utf-8")
            assert leads_to in code, f"{path} does not name {leads_to}"
            assert re.search(rf"^(def {leads_to}\b|{leads_to}\b.* = )", target, re.M), (
                f"{following} defines no {leads_to}"
            )
