"""`--repos DIR`: a benchmark of one's own repositories, made before a run and kept in its folder."""

import shutil
from pathlib import Path
from typing import Any

import pathspec
import pytest

from reflectrl.cli import main

SMALL = ["--teach.tasks", "3", "--teach.negatives", "0", "--env.limit", "5"]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A real package, in a folder of one's own."""
    return Path(shutil.copytree(Path(pathspec.__file__).parent, tmp_path / "pathspec"))


def test_questions_about_ones_own_repository_are_made_once_and_taught(repo: Path, tmp_path: Path, capsys: Any) -> None:
    run = ["teach", "autoexplore", "--repos", str(repo), "--folder", str(tmp_path / "run"), *SMALL]
    assert main(run) == 0
    made = (tmp_path / "run/library/questions/train.jsonl").read_bytes()
    assert made.count(b"\n") > 10 and (tmp_path / "run/episodes/teach-seed0-train.jsonl").stat().st_size
    assert main(run) == 0
    assert (tmp_path / "run/library/questions/train.jsonl").read_bytes() == made
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(repo / "util.py", other)
    assert main([*run[:3], str(other), *run[4:]]) == 2
    assert "was made without" in capsys.readouterr().err


def test_it_is_for_autoexplore_only(repo: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", "taxi", "--repos", str(repo), "--folder", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "reflectrl: --repos is for AutoExplore; recipe taxi is about taxi\n"
    assert not (tmp_path / "run").exists()


def test_a_mistyped_folder_leaves_nothing_behind(repo: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", "autoexplore", "--repos", f"{repo}x", "--folder", str(tmp_path / "run")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
