"""The benchmark of worker processes measures what it says."""

from benchmarks.environments import rows
from benchmarks.settings import Settings
from benchmarks.sleeping import Sleeping
from reflectrl.tools.workbench.check import check_text_env


def test_the_sleeping_environment_is_one() -> None:
    check_text_env(lambda: Sleeping(seconds=0.0, horizon=4, count=3))


def test_there_is_a_row_for_each_environment_and_number_of_workers() -> None:
    found = rows(Settings(repetitions=1))
    assert [(row["environment"], row["workers"]) for row in found] == [
        (name, workers) for name in ("sleeping 5 ms", "taxi") for workers in (0, 1, 2)
    ]
    assert all(row["steps/s"] > 0 for row in found)
    assert [row["ratio"] for row in found if row["workers"] == 0] == [1, 1]
