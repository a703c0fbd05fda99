"""The drills, a few of each: no run that was killed or damaged ends otherwise without a word, or in a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks import drills


def test_killed_and_damaged_runs_go_on_to_the_same_end_or_say_why_not(tmp_path: Path) -> None:
    found = list(drills.drills(kills=2, corruptions=4, seed=3, place=tmp_path))
    assert [one.outcome for one in found[:2]] == [drills.SAME] * 2, found
    assert len(found) == 6 and not [one for one in found if one.outcome in drills.BAD], found
    assert "killed" not in drills.table(found) and drills.table(found).count("0") >= 4


def test_the_drills_notice_another_end(tmp_path: Path) -> None:
    (tmp_path / "drill.toml").write_text(drills.RECIPE, encoding="utf-8")
    whole = tmp_path / "whole"
    whole.mkdir()
    with drills.serving() as server:
        assert server.run(whole) == 0
        wanted = drills.ending(whole / "run")
        assert drills.judged(server, whole, "nothing", wanted).outcome == drills.SAME
        log = next((whole / "run/episodes").glob("eval-random-*"))
        rows = [json.loads(line) | {"seed": 7, "crc32": "unknown"} for line in log.read_text().splitlines()]
        log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert drills.judged(server, whole, "a log written anew by hand", wanted).outcome == drills.OTHER
        log.write_text("no log\n")
        assert drills.judged(server, whole, "a log of nothing", wanted).outcome == drills.REFUSED


@pytest.mark.parametrize("how", drills.DAMAGES)
def test_every_damage_changes_a_file(how: str) -> None:
    data = b"some words of a file"
    assert drills.DAMAGES[how](random.Random(0), data) != data
    drills.DAMAGES[how](random.Random(0), b"")
