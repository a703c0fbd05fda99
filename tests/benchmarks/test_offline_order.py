"""The program that compares arms of a run: pairs of tasks, seeds, and what it says if there is nothing to compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.offline_order import Difference, differences, main
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.types import Episode, Task
from reflectrl.runs.folder import RunFolder


def _played(folder: Path, arm: str, seed: int, won: str) -> None:
    """An evaluation in which task i was won where `won` has a "+" at place i."""
    path = RunFolder(folder).evaluation(arm, seed, "test", "full", "greedy")
    path.parent.mkdir(parents=True, exist_ok=True)
    with EpisodeLog(path) as log:
        for i, mark in enumerate(won):
            task, about = Task(f"t{i}", "house", split="test"), {"arm": arm, "seed": seed, "sampling": "greedy"}
            log.append(Episode(task, (), success=mark == "+", truncated=False, seed=seed, provenance=about))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for seed, (ours, theirs) in enumerate([("++++----", "++------"), ("+++-----", "+-------")]):
        _played(tmp_path, "offline-a_lol", seed, ours)
        _played(tmp_path, "offline-nll", seed, theirs)
    _played(tmp_path, "offline-wbc", 0, "--")
    return tmp_path


def test_differences_are_taken_task_by_task_and_seed_by_seed(run: Path) -> None:
    by_arm: dict[str, Difference] = {one.arm: one for one in differences(run, "offline-nll", "test", "full", [])}
    found, fewer = by_arm["offline-a_lol"], by_arm["offline-wbc"]
    assert found.seeds == 2
    assert found.mean == 0.25 and found.student == (0.25, 0.25)
    assert found.bootstrap[0] <= 0.25 <= found.bootstrap[1] and found.bootstrap[0] < found.bootstrap[1]
    assert (fewer.seeds, fewer.mean, fewer.student) == (1, -1.0, None)


def test_the_table_has_a_row_per_arm(run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["order", str(run)])
    assert main() == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["offline-a_lol", "offline-wbc"] and "+25.0" in rows[0]


@pytest.mark.parametrize("option", ["--against", "--arms"])
def test_an_arm_that_was_not_played_is_named(
    run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["order", str(run), option, "offline-nil"])
    assert main() == 2
    assert "'offline-nil'" in capsys.readouterr().err
