"""A teacher that knows the tasks of some splits only: runs ask it there, and say in one line what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = '''"""A door with a teacher that knows some tasks only."""

from reflectrl import Outcome, Task, Teacher, TextEnv

ANSWERS = {f"{split}-{n}": "left" for split in SPLITS for n in range(30)}


class Book(Teacher):
    def expert_action(self, env):
        HOW
        return env.legal_actions().index(ANSWERS[env.task.id])

    DECLARED


class Door(TextEnv):
    teacher = Book()

    def __init__(self, horizon: int = 4) -> None:
        super().__init__(horizon)

    def tasks(self, split, stage=None):
        assert stage in (None, "full")
        first = {"train": 0, "validation": 10, "test": 20}[split]
        return [Task(f"{split}-{n}", "door", {"n": n}, split) for n in range(first, first + 6)]

    def begin(self, task):
        self.doors = 0

    def apply(self, action):
        self.doors += action == "left"
        won = self.doors == 2
        return Outcome(1.0 if won else 0.0, won, won)

    def state(self):
        return f"{self.doors} doors, {self.task.payload['n']}.\\n"

    def legal_actions(self):
        return ["left", "right"]
'''
RECIPE = """
name = "door"
arms = ["random", "no-reflection"]
env = {name = "door:Door"}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
sft = {steps = 2, eval_every = 1}
rl = {updates = 1, episodes = 4, eval_every = 1, eval_episodes = 2}
eval = {splits = ["train", "test"], temperature = "fitted"}
"""
UNKNOWN = {
    "KeyError": "",
    "NotImplementedError": "if env.task.id not in ANSWERS: raise NotImplementedError('unknown task')",
    "an impossible answer": "if env.task.id not in ANSWERS: return -1",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write the project: `project(splits, how, declared)`."""
    monkeypatch.chdir(tmp_path)

    def write(splits: tuple[str, ...], how: str = "", declared: str = "") -> None:
        source = ENVIRONMENT.replace("SPLITS", repr(splits)).replace("HOW", how or "pass")
        (tmp_path / "door").mkdir()
        (tmp_path / "door/__init__.py").write_text(source.replace("DECLARED", declared or "pass"), encoding="utf-8")
        (tmp_path / "door/recipe.toml").write_text(RECIPE, encoding="utf-8")

    return write


def rows(split: str) -> list[dict[str, Any]]:
    results = json.loads(Path("runs/door/results.json").read_text(encoding="utf-8"))
    return [row for row in results["rows"] if (row["split"], row["arm"]) == (split, "no-reflection")]


@pytest.mark.parametrize("how", UNKNOWN)
def test_test_tasks_that_it_does_not_know_have_no_calibration_and_all_other_results(
    project: Callable[..., None], command: Callable[..., Any], how: str
) -> None:
    project(("train", "validation"), UNKNOWN[how])
    done = command("run", "door", "--no-check")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("test tasks have no figures of calibration") == 1
    assert all("ece" in row for row in rows("train")) and not any("ece" in row for row in rows("test"))
    assert all(row["episodes"] == 6 for row in rows("test"))


def test_it_is_not_asked_where_it_says_that_it_does_not_teach(
    project: Callable[..., None], command: Callable[..., Any]
) -> None:
    project(("train", "validation"), declared='def teaches(self, split): return split != "test"')
    done = command("run", "door")
    assert done.returncode == 0, done.stderr
    assert "test tasks have no figures of calibration: the teacher of Door does not know them" in done.stderr
    done = command("run", "door", "--arms", "random,expert", "--folder", "other")
    assert done.returncode == 2
    assert "does not know test tasks, which arm 'expert' would need" in done.stderr


def test_the_check_before_a_run_says_so_and_goes_on(project: Callable[..., None], command: Callable[..., Any]) -> None:
    project(("train", "validation"))
    done = command("run", "door", "--arms", "random")
    assert done.returncode == 0, done.stderr
    assert "note: the teacher does not know test tasks (KeyError); its teaches() may" in done.stdout
    assert "every promise is kept" in done.stdout
    done = command("check-env", "door")
    assert done.returncode == 0 and done.stdout.count("the teacher does not know test tasks") == 1


def test_without_validation_tasks_nothing_is_fitted(project: Callable[..., None], command: Callable[..., Any]) -> None:
    project(("train", "test"), declared='def teaches(self, split): return split != "validation"')
    done = command("run", "door")
    assert done.returncode == 2 and "does not know validation tasks, which arm 'no-reflection'" in done.stderr
    done = command("run", "door", "--arms", "random,rl-only")
    assert done.returncode == 0 and not list(Path("runs/door").glob("calibration/*")), done.stderr
