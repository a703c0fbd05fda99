"""The program that measures AutoExplore, on a small scale."""

from benchmarks import autoexplore
from benchmarks.settings import Settings


def test_opening_reading_and_walking_are_measured() -> None:
    found = autoexplore.rows(Settings(repetitions=1), files=20, entries=30, episodes=3, live=4)
    opening, (index, *walks) = found[:6], found[6:]
    assert [row["n"] for row in opening] == [20, 20, 2, 30, 20, 20]
    assert [row["what"] for row in opening if row["MiB"]] == ["open 1,000 folders", "open one folder"]
    assert index["what"].startswith("index")
    assert [row["n"] for row in walks if "MiB" in row] == [4, 4] and all(
        row["MiB"] > 0 for row in walks if "MiB" in row
    )
    steps = [row for row in walks if row["what"].startswith("steps")]
    assert len(steps) == 5 and all(row["n"] >= 3 and row["per CPU second"] > 0 for row in steps)
    assert all(row["seconds"] > 0 for row in (*opening, index, *steps))
