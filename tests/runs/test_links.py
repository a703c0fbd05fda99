"""Symbolic links in a folder to be written in: refused by name, and what they lead to stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import write_text
from reflectrl.runs.folder import folder_lock

ARGUMENTS = ["--arms=random", "--eval.splits=test"]
WRITTEN = (
    ".lock",
    ".writable",
    "recipe.toml.writing",
    "state.json.writing",
    "results.json",
    "timings.jsonl",
    "metrics.jsonl.writing",
    "report.html",
    "episodes/eval-random-seed0-test-full-greedy.jsonl",
)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's file beside the run folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("of value\n", encoding="utf-8")
    return tmp_path / "mine.txt"


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_folder_with_a_link_is_refused_and_nothing_is_written_through_it(
    target: Path, recipe_file: Path, capsys: Any, name: str
) -> None:
    link(Path("run", name), target)
    assert main(["run", str(recipe_file), *ARGUMENTS, "--folder", "run"]) == 2
    err = capsys.readouterr().err
    assert f"run holds a link: {name} -> {target}" in err and err.count("\n") == 1
    assert target.read_text() == "of value\n"
    assert [path.name for path in Path("run").rglob("*") if path.is_file()] in ([Path(name).name], [])


@pytest.mark.parametrize("name", ["episodes", "checkpoints", "checkpoints/seed0/policy.writing", "library"])
def test_folders_may_not_be_links_either(target: Path, recipe_file: Path, capsys: Any, name: str) -> None:
    Path("elsewhere").mkdir()
    link(Path("run", name), Path("elsewhere").resolve())
    assert main(["run", str(recipe_file), *ARGUMENTS, "--folder", "run"]) == 2
    assert f"run holds a link: {name} -> " in capsys.readouterr().err
    assert not list(Path("elsewhere").iterdir())


def test_a_link_that_leads_nowhere_makes_nothing_there(target: Path, recipe_file: Path, capsys: Any) -> None:
    link(Path("run/.writable"), target.with_name("new"))
    assert main(["run", str(recipe_file), *ARGUMENTS, "--folder", "run"]) == 2
    assert ".writable" in capsys.readouterr().err and not target.with_name("new").exists()


def test_the_run_folder_itself_may_be_reached_through_a_link(target: Path, recipe_file: Path) -> None:
    Path("disk/run").mkdir(parents=True)
    Path("runs").symlink_to("disk")
    assert main(["eval", str(recipe_file), *ARGUMENTS, "--folder", "runs/run"]) == 0
    assert Path("disk/run/results.json").is_file()


def test_the_same_in_python(target: Path) -> None:
    link(Path("run/.lock"), target)
    with pytest.raises(UserError, match="run holds a link: .lock"), folder_lock(Path("run")):
        pass
    assert target.read_text() == "of value\n"


def test_temporary_files_beside_what_is_written_may_be_no_links(target: Path) -> None:
    link(Path("text.writing"), target)
    with pytest.raises(OSError, match="symbolic links"):
        write_text(Path("text"), "new")
    assert target.read_text() == "of value\n"
