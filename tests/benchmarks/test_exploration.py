"""The program for rare reward: its environment is what it says, and every row can be trained."""

import math

import pytest

from benchmarks.exploration import ARMS, Settings, demonstration, row_of, rows
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import UserError
from reflectrl.examples.key_door import KeyDoorEnv, chance
from reflectrl.tools.workbench.check import check_text_env


def test_the_environment_keeps_its_promises_and_its_milestones_lie_on_the_way() -> None:
    check_text_env(KeyDoorEnv)
    episode = demonstration(KeyDoorEnv(6))
    events = [event for step in episode.steps for event in step.events]
    assert episode.success and episode.total_reward == 1.0
    assert [events.index(name) for name in ("key", "middle", "full")] == sorted(map(events.index, set(events)))
    with pytest.raises(UserError, match="length must be at least 5, not 4"):
        KeyDoorEnv(4)


def test_the_computed_chance_is_that_of_random_play() -> None:
    env = KeyDoorEnv(5, horizon=30)
    tasks = env.tasks("train")
    jobs = [Job(tasks[i % len(tasks)], i) for i in range(400)]
    won = sum(episode.success for episode in rollout(jobs, lambda: KeyDoorEnv(5, horizon=30), RandomPlayer()))
    p = chance(env)
    assert 0.02 < p < 0.2 and won == pytest.approx(400 * p, abs=4 * math.sqrt(400 * p))
    assert chance(KeyDoorEnv()) < 1e-4


def test_every_row_is_trained() -> None:
    found = rows(Settings(seeds=1, updates=1, length=5))
    assert [row["key"] for row in found] == list(ARMS)


def test_a_row_by_hand() -> None:
    runs = [{"success": s, "held out": s / 2, "first win": f} for s, f in ((1.0, 7), (0.6, 30), (0.2, math.inf))]
    row = row_of("counts", runs)
    assert (row["success"], row["held out"], row["learned"], row["first win"]) == ("60%", "30%", "1 of 3", "7 30 -")
    assert row["95 %"] == "0% to 100%"  # Student's t with two degrees of freedom is wide
