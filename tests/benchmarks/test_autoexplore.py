"""The program that measures AutoExplore, on a small scale."""

from benchmarks import autoexplore
from benchmarks.settings import Settings


def test_opening_and_reading_are_measured() -> None:
    found = autoexplore.rows(Settings(repetitions=1), files=20, entries=30)
    assert [row["files"] for row in found] == [20, 20, 2, 30, 20, 20]
    assert all(row["seconds"] > 0 for row in found)
    assert [row["what"] for row in found if row["MiB"]] == ["open 1,000 folders", "open one folder"]
