"""The benchmark of worker processes prints what it measured."""

import json

import pytest
from benchmarks.environments import main
from benchmarks.sleeping import Sleeping

from reflectrl.envs.check import check_text_env


def test_the_sleeping_environment_is_one() -> None:
    check_text_env(lambda: Sleeping(seconds=0.0, horizon=4, count=3))


def test_it_prints_a_row_for_each_environment_and_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--repetitions", "1", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["environment"], row["workers"]) for row in rows] == [
        (name, workers) for name in ("sleeping 5 ms", "taxi") for workers in (0, 1, 2)
    ]
    assert all(row["steps/s"] > 0 for row in rows)
    assert [row["ratio"] for row in rows if row["workers"] == 0] == [1, 1]
