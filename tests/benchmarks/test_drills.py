"""The drills, a few of each: no run that was killed or damaged ends otherwise without a word, or in a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks import drills
from benchmarks.forks import Forks


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.fixture(scope="module")
def server(forks: Forks, place: Path) -> drills.Server:
    return drills.Server(place / "said", forks)


@pytest.fixture(scope="module")
def found(server: drills.Server, place: Path) -> list[drills.Drill]:
    asked = drills.Asked(kills=1, terms=1, newest=1, corruptions=1, seed=3)
    return list(drills.drills(server, asked, place))


def test_killed_and_damaged_runs_go_on_to_the_same_end_or_say_why_not(found: list[drills.Drill]) -> None:
    assert found[0].what.startswith("killed") and found[1].what.startswith("terminated")
    assert found[0].outcome == found[1].outcome == drills.SAME
    assert found[2].what.startswith("newest") and "[the same end]" in found[2].said
    assert len(found) == 4 and not [one for one in found if drills.is_bad(one)], found


def test_they_notice_another_end_without_a_word(found: list[drills.Drill], server: drills.Server, place: Path) -> None:
    run = place / "whole/run"
    wanted = drills.ending(run)
    log = next((run / "episodes").glob("eval-random-*"))
    rows = [json.loads(line) | {"seed": 7, "crc32": "unknown"} for line in log.read_text().splitlines()]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    other = drills.judged(server, place / "whole", "a log written anew by hand", wanted)
    assert other.outcome == drills.OTHER and log.name in other.said
    [row] = [line for line in drills.table([*found, other]).splitlines() if line.startswith(drills.OTHER)]
    assert row.split()[-2:] == ["0", "1"]


@pytest.mark.parametrize("how", drills.DAMAGES)
def test_every_damage_changes_a_file(how: str) -> None:
    data = b"some words of a file"
    assert drills.DAMAGES[how](random.Random(0), data) != data
    drills.DAMAGES[how](random.Random(0), b"")
