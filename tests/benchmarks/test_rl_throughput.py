"""The throughput of RL: its stopwatch by hand, and two updates of a tiny pair in a process of its own."""

import json
from itertools import count
from pathlib import Path

import pytest

from benchmarks import rl_throughput
from benchmarks.rl_throughput import PARTS, Stopwatch, Version, row
from benchmarks.workloads import bench_model, workload


def test_a_part_does_not_take_the_time_of_those_within() -> None:
    clock = Stopwatch(map(float, count()).__next__)  # each look at the clock takes a second
    with clock.part("outer"):
        with clock.part("inner"):
            pass
        with clock.part("inner"):
            pass
    assert clock.seconds == {"outer": 3, "inner": 2} and clock.whole == {"outer": 5, "inner": 2}


def test_rates_by_hand() -> None:
    updates = [
        {"steps": 100, "distinct": 25, "seconds": seconds, "playing": 1.0, "forward": 1.0, "success": 0.5}
        for seconds in (2.0, 5.0, 3.0)
    ]
    found = row("ppo", "now", updates)
    assert (found["distinct"], found["play steps/s"]) == (0.25, 100)
    assert found["learning steps/s"] == 50 and found["steps/s"] == pytest.approx(100 / 3)
    assert found["forward"] == "30%" and found["backward"] == "0%"


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_updates_of_a_tiny_pair(tmp_path: Path, ranks: int) -> None:
    for player in ("policy", "reflector"):
        bench_model("tiny", workload("taxi"), context=512).save(tmp_path / player)
    clock = "cpu" if ranks == 1 else "wall"
    version = Version(Path(rl_throughput.__file__).resolve().parents[1], 1, clock, ranks)
    cell = json.dumps([str(tmp_path), "ppo, KL, replay", 4, 1.0])
    first, second = version.update(cell), version.update(cell)
    assert version.close() == [0] * ranks
    for found in (first, second):
        assert 4 <= found["distinct"] <= found["steps"]
        parts = sum(found.get(part, 0.0) for part in PARTS)
        assert 0 < found["playing"] < found["seconds"] and parts == pytest.approx(found["seconds"], rel=0.05)
