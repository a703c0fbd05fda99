"""A driver that sees no walls wins every ride where there are none, and no ride that has to go round one."""

from pathlib import Path

import pytest

from benchmarks.wall_blind import Settings, compared, main, wins_without_walls
from reflectrl.core.envs import make
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.teach.trajectories import Demonstration, teach
from reflectrl.core.types import UserError
from reflectrl.wings.taxi.env import TaxiEnv
from reflectrl.wings.taxi.world import Cell, City, Ride


def apart(a: Cell, b: Cell) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def goes_straight(city: City, ride: Ride) -> bool:
    """Whether no wall makes the shortest ride longer."""
    pickup, destination = city.landmarks[ride.passenger], city.landmarks[ride.destination]
    return city.actions_left(ride) == apart(ride.cell, pickup) + apart(pickup, destination) + 2


def test_without_walls_it_wins_everything() -> None:
    env = TaxiEnv(maps="random", wall_probability=0.0)
    assert all(wins_without_walls(env, task) for task in env.tasks("test")[:20])


def test_with_walls_it_wins_some_rides_that_go_straight_and_no_others() -> None:
    env, won, straight = TaxiEnv(maps="random"), 0, 0
    for task in env.tasks("test")[:60]:
        env.reset(options={"task": task})
        direct = goes_straight(env.city, env.ride)
        wins = wins_without_walls(env, task)
        assert direct or not wins
        won, straight = won + wins, straight + direct
    assert 0 < won < straight < 60


def test_recorded_players_are_compared_task_by_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = make({"name": "taxi", "maps": "random"})
    tasks = env.tasks("test")[:12]
    with EpisodeLog(tmp_path / "expert.jsonl") as log:
        for task in tasks:
            log.append(teach(env, Demonstration(task, 0, "trajectory")))
    blind = sum(wins_without_walls(TaxiEnv(maps="random"), task) for task in tasks)
    file = tmp_path / "expert.jsonl"
    main(Settings((file, file)))  # as with files of the same name from two runs, each has its line
    assert capsys.readouterr().out.count(f"| {file} | 12 | {blind} | 12 | {blind} |") == 2
    assert compared(TaxiEnv(maps="random"), []).total() == 0
    with pytest.raises(UserError, match="nowhere"):
        main(Settings((tmp_path / "nowhere.jsonl",)))
