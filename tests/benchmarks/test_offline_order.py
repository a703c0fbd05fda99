"""The program that compares arms of a run: pairs of tasks, seeds, and what it says if there is nothing to compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.offline_order import difference, main
from reflectrl.episodes import EpisodeLog
from reflectrl.pipeline.layout import RunFolder
from reflectrl.types import Episode, Task


def _played(folder: Path, arm: str, seed: int, won: str) -> None:
    """An evaluation in which task i was won where `won` has a "+" at place i."""
    path = RunFolder(folder).evaluation(arm, seed, "test", "full", "greedy")
    path.parent.mkdir(parents=True, exist_ok=True)
    with EpisodeLog(path) as log:
        for i, mark in enumerate(won):
            log.append(Episode(Task(f"t{i}", "house"), (), success=mark == "+", truncated=False, seed=seed))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for seed, (ours, theirs) in enumerate([("++++----", "++------"), ("+++-----", "+-------")]):
        _played(tmp_path, "offline-a_lol", seed, ours)
        _played(tmp_path, "offline-nll", seed, theirs)
    _played(tmp_path, "offline-wbc", 0, "--")
    return tmp_path


def test_differences_are_taken_task_by_task_and_seed_by_seed(run: Path) -> None:
    found = difference(run, "offline-a_lol", "offline-nll", "test", "full", "greedy")
    assert found is not None and found.seeds == 2
    assert found.mean == 0.25 and found.student == (0.25, 0.25)
    assert found.bootstrap[0] <= 0.25 <= found.bootstrap[1] and found.bootstrap[0] < found.bootstrap[1]
    fewer = difference(run, "offline-wbc", "offline-nll", "test", "full", "greedy")
    assert fewer is not None and (fewer.seeds, fewer.mean, fewer.student) == (1, -1.0, None)


def test_the_table_has_a_row_per_arm(run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["order", str(run)])
    assert main() == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["offline-a_lol", "offline-wbc"] and "+25.0" in rows[0]


def test_an_arm_that_was_not_played_is_named(run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["order", str(run), "--against", "offline-nil"])
    assert main() == 2
    assert "'offline-nil'" in capsys.readouterr().err
