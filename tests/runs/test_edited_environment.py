"""An environment is edited between two runs in the same folder: what was made in the old one is set aside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.source_code import environment_digest, source_files, without_comments
from reflectrl.runs.state import STATE, _hash

ENVIRONMENT = '''"""A door."""

from reflectrl import Outcome, Task, TextEnv
from rules import PRIZE


class Door(TextEnv):
    data_files = ("maps/*.txt",)

    def __init__(self, horizon: int = 4, file: str = "") -> None:
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
        return Outcome(PRIZE if won else 0.0, won, won)

    def state(self):
        return f"{self.doors} doors.\\n"

    def legal_actions(self):
        return ["left", "right"]
'''
RECIPE = """
name = "door"
arms = ["random", "rl-only"]
env = {name = "door:Door"}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
rl = {updates = 2, episodes = 4, eval_every = 1, eval_episodes = 2, own_wins = 0}
eval = {splits = ["test"]}
"""
RUN = ("run", "door", "--folder", "run")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a project, a module beside it that it imports, and no more."""
    project = tmp_path / "door"
    (project / "maps").mkdir(parents=True)
    (project / "__init__.py").write_text(ENVIRONMENT, encoding="utf-8")
    (project / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (project / "maps" / "a.txt").write_text("##\n", encoding="utf-8")
    (tmp_path / "rules.py").write_text("PRIZE = 1.0\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def returns(folder: Path) -> list[float]:
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"]
    return [row["return"] for row in rows]


def test_everything_is_made_anew_and_the_old_run_is_kept_whole(here: Path, command: Callable[..., Any]) -> None:
    done = command(*RUN)
    assert done.returncode == 0, done.stderr
    before, fingerprints = returns(here / "run"), json.loads((here / "run" / STATE).read_text())["artifacts"]
    edit(here / "rules.py", "1.0", "5.0")
    done = command(*RUN)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "has changed since run was last used" in line]
    assert "environment 'door:Door'" in line and line.endswith("what was made before is kept in run/outdated/1")
    assert returns(here / "run") == pytest.approx([5 * value for value in before])
    assert returns(here / "run/outdated/1") == before
    now = json.loads((here / "run" / STATE).read_text())["artifacts"]
    assert all(now[key]["fingerprint"] != record["fingerprint"] for key, record in fingerprints.items())
    done = command(*RUN)
    assert done.returncode == 0 and "changed" not in done.stderr
    assert sorted(path.name for path in (here / "run/outdated").iterdir()) == ["1"]
    edit(here / "rules.py", "5.0", "1.0")
    done = command("run", "door", "--folder", "run/outdated/1")
    assert done.returncode == 0 and "changed" not in done.stderr


def test_training_that_was_begun_in_the_old_world_is_not_continued(
    here: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment raises during RL, its author mends it, and no half of a policy is left over."""
    edit(here / "door/__init__.py", "self.doors = 0", 'self.doors = 0; assert task.split != "test"')
    done = command(*RUN, "--no-check")
    assert done.returncode == 2 and "AssertionError" in done.stderr
    assert list(here.glob("run/checkpoints/seed0/*"))
    edit(here / "door/__init__.py", '; assert task.split != "test"', "")
    done = command(*RUN, "--no-check")
    assert done.returncode == 0 and "everything is made anew" in done.stderr
    again = command("run", "door", "--folder", "fresh")
    assert again.returncode == 0
    weights = "checkpoints/seed0/rl-rl-only/model.safetensors"
    assert (here / "run" / weights).read_bytes() == (here / "fresh" / weights).read_bytes()


def test_other_arms_are_not_set_beside_the_old_ones(here: Path, command: Callable[..., Any]) -> None:
    assert command(*RUN, "--arms", "random").returncode == 0
    edit(here / "door/__init__.py", "self.doors == 2", "self.doors == 1")
    done = command(*RUN, "--arms", "random,rl-only", "--processes", "2", "--env_workers", "1")
    assert done.returncode == 0 and "everything is made anew" in done.stderr, done.stderr


def test_a_folder_of_an_earlier_version_goes_on_with_one_line(here: Path, command: Callable[..., Any]) -> None:
    assert command(*RUN, "--arms", "random").returncode == 0
    path = here / "run" / STATE
    state = json.loads(path.read_text(encoding="utf-8"))
    del state["digest"]
    code = (
        "import json, sys; from reflectrl.core.config import read_recipe; from reflectrl.runs.graph import planned;"
        "from reflectrl.runs.state import fingerprint; recipe = read_recipe('run/recipe.toml');"
        "print(json.dumps({k: fingerprint(a, recipe.plain(), '') for k, a in planned(recipe).items()}))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    without = json.loads(printed)
    for key, record in state["artifacts"].items():
        del record["environment"], record["versions"]
        record["fingerprint"] = without[key]
    path.write_text(json.dumps({**state, "digest": _hash(state)}), encoding="utf-8")
    episodes = {file: file.stat().st_mtime_ns for file in here.glob("run/episodes/*")}
    done = command(*RUN, "--arms", "random")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("noted no digest of the environment's source") == 1
    assert {file: file.stat().st_mtime_ns for file in here.glob("run/episodes/*")} == episodes
    done = command(*RUN, "--arms", "random")
    assert done.returncode == 0 and "digest" not in done.stderr
    edit(here / "rules.py", "1.0", "5.0")
    assert "everything is made anew" in command(*RUN, "--arms", "random").stderr


def test_a_run_that_another_version_continues_names_both(here: Path, command: Callable[..., Any]) -> None:
    assert command(*RUN, "--arms", "random").returncode == 0
    path = here / "run" / STATE
    state = json.loads(path.read_text(encoding="utf-8"))
    del state["digest"]
    state["artifacts"]["eval random (seed 0)"]["versions"] = "version 0.0.9"
    path.write_text(json.dumps({**state, "digest": _hash(state)}), encoding="utf-8")
    done = command(*RUN)
    assert done.returncode == 0
    [line] = [line for line in done.stderr.splitlines() if "version 0.0.9" in line]
    assert line.startswith("reflectrl: run was begun by version 0.0.9 and is continued by ")
    commit = json.loads((here / "run/results.json").read_text())["commit"]
    assert commit.startswith("version 0.0.9, ") and commit.count(", ") == 1
    assert "version 0.0.9" in (here / "run/report.html").read_text(encoding="utf-8")


# ---- the digest ------------------------------------------------------------------------------------------------------


def digest(**arguments: Any) -> str:
    return environment_digest({"name": "door:Door", **arguments})


EDITS: dict[str, tuple[bool, Callable[[Path], Any]]] = {
    "code": (True, lambda here: edit(here / "door/__init__.py", "== 2", "== 1")),
    "a text": (True, lambda here: edit(here / "door/__init__.py", "doors.", "doors!")),
    "a module of the package": (True, lambda here: (here / "door/more.py").write_text("x = 1")),
    "a module beside it that is imported": (True, lambda here: edit(here / "rules.py", "1.0", "2.0")),
    "declared data": (True, lambda here: (here / "door/maps/a.txt").write_text("#.\n")),
    "a data file of the package": (True, lambda here: (here / "door/levels.json").write_text("[]")),
    "a comment": (False, lambda here: edit(here / "door/__init__.py", "self.doors = 0", "self.doors = 0  # none")),
    "an empty line": (False, lambda here: edit(here / "door/__init__.py", "\n\nclass", "\n\n\n# here\nclass")),
    "ends of lines": (
        False,
        lambda here: (here / "rules.py").write_bytes((here / "rules.py").read_bytes().replace(b"\n", b"\r\n")),
    ),
    "its recipe": (False, lambda here: edit(here / "door/recipe.toml", "updates = 2", "updates = 3")),
    "its test": (False, lambda here: (here / "door/test_door.py").write_text("assert True")),
    "a module that it does not import": (False, lambda here: (here / "other.py").write_text("x = 1")),
    "compiled code": (False, lambda here: (here / "door/__pycache__").mkdir()),
    "recorded episodes": (False, lambda here: (here / "door/demos.jsonl").write_text('{"a": 1,"crc32":"00000000"}\n')),
}


@pytest.mark.parametrize("name", EDITS)
def test_the_digest_changes_with_whatever_may_change_the_environment(here: Path, name: str) -> None:
    before = digest()
    changes, make_edit = EDITS[name]
    make_edit(here)
    assert before and (digest() != before) == changes


def test_a_file_that_the_recipe_names_counts(here: Path) -> None:
    (here / "levels.csv").write_text("1\n", encoding="utf-8")
    before = digest(file="levels.csv")
    (here / "levels.csv").write_text("2\n", encoding="utf-8")
    assert digest(file="levels.csv") != before != digest()


def test_the_world_that_an_adapter_plays_counts(here: Path) -> None:
    adapter = {"name": "reflectrl.core.envs.adapter:GymTextEnv", "id": "other:World-v0"}
    before = environment_digest(adapter)
    (here / "other.py").write_text("x = 1\n", encoding="utf-8")
    assert before and environment_digest(adapter) != before
    (here / "door/__init__.py").write_text('"""Plays a world."""\nID = "other:World-v0"\n', encoding="utf-8")
    assert "other.py" in {Path(name).name for name in source_files("door")}


def test_it_does_not_matter_where_the_files_lie(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    shutil.copytree(here, here.parent / "elsewhere")
    monkeypatch.chdir(here.parent / "elsewhere")
    assert digest() == before


def test_what_was_imported_counts_and_not_what_was_edited_since(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(here)
    import other  # type: ignore[import-not-found]

    before = environment_digest({"name": "other:World"})
    (here / "other.py").write_text("x = 1\n", encoding="utf-8")
    assert environment_digest({"name": "other:World"}) == before
    del sys.modules["other"], other
    assert environment_digest({"name": "other:World"}) != before


@pytest.mark.parametrize("name", ["reflectrl.core.envs.adapter:GymTextEnv", "nowhere:None", "no such name"])
def test_environments_of_reflectrl_have_no_digest(name: str) -> None:
    assert environment_digest({"name": name}) == ""


def test_texts_keep_their_empty_lines_and_marks() -> None:
    code = b'a = """\n\n  # not a comment  \n\n"""\n\n# a comment\nb = 1  # another\n'
    assert without_comments(code) == b'a = """\n\n  # not a comment  \n\n"""\nb = 1\n'
    assert without_comments(b"def f(:\n") == b"def f(:\n"
