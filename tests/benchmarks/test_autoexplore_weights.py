"""The program that fits the weights of AutoExplore's search: what it finds where one ground decides, and its table."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.autoexplore_weights import Candidates, first_right, fitted, main
from reflectrl.wings.autoexplore.finder import GROUNDS
from tests.wings.autoexplore.shelf import make_library


def test_a_ground_that_decides_gets_the_weight() -> None:
    rng = np.random.default_rng(0)
    names = GROUNDS.index("names")
    asked = [rng.random((6, len(GROUNDS))) for _ in range(60)]
    questions = [Candidates(one, np.arange(6) == one[:, names].argmax()) for one in asked]
    weights = fitted(questions)
    assert weights.argmax() == names and weights[names] > 5 * np.abs(np.delete(weights, names)).max()
    assert first_right(questions, weights) > 0.9 > first_right(questions, np.eye(len(GROUNDS))[0])


def test_the_table_has_a_row_per_split(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = make_library(tmp_path / "library")
    monkeypatch.setattr(sys, "argv", ["weights", "--library", str(library), "--splits", "test"])
    main()
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].startswith("in use") and rows[2].startswith("fitted")
    assert [row.split()[0] for row in rows[-2:]] == ["train", "test"]
