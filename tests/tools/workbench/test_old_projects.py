"""Projects that earlier versions' `init` wrote, and one written by hand then: they work as they are.

`old_projects` holds them unchanged, apart from their names. The first two import from places that have moved since.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl.tools.workbench.init import raw

PROJECTS = Path(__file__).parent / "old_projects"
NAMES = sorted(path.parent.name for path in PROJECTS.glob("*/recipe.toml"))
MOVED = ("first_errands", "second_errands", "own_door")
STABLE = (
    "SPLITS", "Agent", "AuxiliaryQuestion", "Choice", "Episode", "GymTextEnv", "Observation", "Outcome",
    "RecordEpisodes", "Recorder", "Recording", "Reflection", "Run", "Step", "Task", "Teacher", "TextEnv", "Turn",
    "UserError", "View", "WrittenEnv", "check_text_env", "divide", "evaluate", "load_agent", "make_env",
    "require_known", "train",
)  # fmt: skip
"""Names that environments and programs import from `reflectrl`. None of them may ever be removed."""
OLD_MODULES = {
    "reflectrl.envs": "make",
    "reflectrl.envs.adapter": "GymTextEnv",
    "reflectrl.envs.base": "TextEnv",
    "reflectrl.envs.check": "check_text_env",
    "reflectrl.envs.pool": "EnvPool",
    "reflectrl.envs.promises": "require_kept",
    "reflectrl.envs.teacher": "Teacher",
    "reflectrl.envs.written": "WrittenEnv",
    "reflectrl.plugins": "one_line",
    "reflectrl.teach": "Recorder",
    "reflectrl.teach.record": "Recorder",
    "reflectrl.teach.wrapper": "RecordEpisodes",
    "reflectrl.types": "Task",
    "reflectrl.workbench.check": "check_text_env",
}
"""Modules of earlier versions, and something in each."""


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(PROJECTS / request.param, tmp_path / request.param))


def notices(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "a name of an earlier version" in line]


@pytest.mark.parametrize("project", NAMES, indirect=True)
def test_it_is_checked_and_run(project: Path, command: Callable[..., Any]) -> None:
    """A run checks the environment first, by the same rules as `check-env`."""
    name = project.name
    done = command("run", name, "--arms", "random", "--eval.episodes", "3", "--env.horizon", "12")
    assert done.returncode == 0 and "every promise is kept" in done.stdout, done.stderr
    assert len(notices(done.stderr)) == (name in MOVED), done.stderr
    assert name not in MOVED or f"{name}/__init__.py imports reflectrl.envs" in done.stderr


@pytest.mark.parametrize("project", [name for name in NAMES if "errands" in name], indirect=True)
def test_its_own_test_passes(project: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", project.name]
    done = subprocess.run(words, cwd=project.parent, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def test_public_names_stay() -> None:
    assert set(STABLE) <= set(reflectrl.__all__)
    assert all(getattr(reflectrl, name) is not None for name in STABLE)


@pytest.mark.parametrize("name", OLD_MODULES)
def test_a_module_of_an_earlier_version_is_the_present_one(name: str) -> None:
    member = OLD_MODULES[name]
    code = f"import {name} as old; from {name} import {member}; print({member}.__module__); assert old.{member}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("reflectrl.core.", "reflectrl.tools.")) and len(notices(done.stderr)) == 1


@pytest.mark.parametrize("template", ["environment.py.txt", "gym_environment.py.txt", "test.py.txt"])
def test_a_new_project_imports_from_the_stable_place_only(template: str) -> None:
    imports = [line for line in raw(template).splitlines() if "import" in line and "reflectrl" in line]
    assert imports and all(line.startswith("from reflectrl import ") for line in imports)
