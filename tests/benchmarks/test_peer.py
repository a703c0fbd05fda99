"""The comparison with MaskablePPO: features of a text, the environment for it, and when a threshold was reached."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.strangers import make
from benchmarks.strangers.beside import Count, Spent, reached, row, searched
from benchmarks.strangers.features import OneHot
from benchmarks.strangers.peer import Budget, Featured, first_reached, random_sample, train
from reflectrl.core.config import read_recipe
from reflectrl.core.types import Observation

SEEN = Observation("You woke.\n", "A cat sleeps.\n", ("go left", "wait"))


def test_every_word_has_a_column_by_its_place_and_unknown_ones_share_another() -> None:
    features = OneHot([SEEN])
    assert features(SEEN).sum() == 2 + 3 + 3 and features.most_actions == 2
    other = features(Observation("You woke.\nYou yawned.\n", "A dog sleeps.\n", ("go left", "wait")))
    # "dog" is unknown in its slot, and the two words of the new line share the column of slots never seen.
    assert other.sum() == 9 and other[-1] == 1 and features(SEEN)[-1] == 0
    moved = features(Observation("", "sleeps. A cat\n", ()))
    assert moved @ features(SEEN) == 0, "a word elsewhere is another word"


def test_a_stranger_becomes_vectors_with_a_mask_of_what_is_listed() -> None:
    sample = random_sample(make("fusebox"), 0, 300)
    assert sample.steps >= 300 and len(sample.observations) == sample.steps + sample.episodes
    env = Featured(make("fusebox"), OneHot(sample.observations), make("fusebox").tasks("train"), 3)
    seen, _ = env.reset()
    assert env.observation_space.contains(seen) and env.action_masks().sum() == len(env.env.legal_actions())
    ended, taken = False, 0
    while not ended:
        listed = int(env.action_masks().sum())
        seen, _, terminated, truncated, _ = env.step(listed - 1)
        ended, taken = terminated or truncated, taken + 1
        assert env.observation_space.contains(seen)
    assert env.episodes == 1 and taken <= env.env.horizon
    again = Featured(make("fusebox"), env.features, make("fusebox").tasks("train"), 3)
    assert np.array_equal(again.reset()[0], Featured(again.env, env.features, again.tasks, 3).reset()[0])


def test_the_threshold_counts_what_was_played_before_that_evaluation() -> None:
    metrics = [
        {"kind": "sft", "step": 200},
        {"kind": "rl", "step": 0, "eval_success": 0.2, "episodes": 64, "env_steps": 400},
        {"kind": "rl", "step": 1, "episodes": 128, "env_steps": 790},
        {"kind": "rl", "step": 2, "eval_success": 0.9, "episodes": 192, "env_steps": 1100},
        {"kind": "rl", "step": 4, "eval_success": 1.0},
    ]
    timings = [
        {"stage": "wins", "seconds": 10.0, "cpu_seconds": 4.0},
        {"stage": "imitate", "seconds": 6.0},
        {"kind": "rl", "step": 0, "seconds": 1.0},
        {"kind": "rl", "step": 2, "seconds": 3.0},
        {"kind": "rl", "step": 4, "seconds": 100.0},
        {"stage": "rl", "seconds": 104.0},
        {"arm": "rl-only", "stage": "full", "seconds": 0.1, "episodes": 9},
        {"finished": "now"},
    ]
    assert reached(metrics, timings, 0.8, scale=0.5) == Spent(128, 790, 4 + 3 + 0.5 + 1.5)
    assert reached(metrics, timings, 0.2) == Spent(0, 0, 4 + 6 + 1)
    assert reached(metrics[:3], timings, 0.8) is None
    evaluations = [{"success": 0.1}, {"success": 0.8}, {"success": 0.9}]
    assert first_reached(evaluations, 0.8) == {"success": 0.8} and first_reached(evaluations, 1.0) is None


def test_a_search_is_counted_with_its_returns_and_its_copies_with_detours(tmp_path: Path) -> None:
    counted = []
    for detours in (0, 3):
        settings = f"own_wins = 2\nown_wins_steps = 3000\nown_wins_detours = {detours}"
        (tmp_path / "recipe.toml").write_text(f'name = "x"\n[rl]\n{settings}\n[env]\nname = "taxi"\n')
        counted.append(searched("long_corridor", read_recipe(tmp_path / "recipe.toml"), 0))
    (wins, episodes, steps), (copied_wins, copied_episodes, copied_steps) = counted
    assert wins == 1 and episodes > 100 and steps >= 2 * episodes
    assert copied_wins == 2 and copied_episodes > episodes and copied_steps > steps
    count = Count("scales")
    env = count.make()
    env.reset(seed=0, options={"task": env.tasks("train")[0]})
    env.step(0)
    assert (count.episodes, count.steps) == (1, 1)


def test_a_row_says_by_how_much_and_where_the_peer_never_came() -> None:
    peer = {"threshold": 0.8, "sample": {"episodes": 100, "steps": 400}, "test": 0.5}
    peer |= {"episodes": 9000, "steps": 50_000, "cpu_seconds": 40.0}
    peer["reached"] = {"episodes": 900, "steps": 3600, "cpu_seconds": 20.0}
    line = {"name": "dice", "seed": 0}
    won = row(line, Spent(500, 8000, 60.0), 1.0, peer)
    assert won == ("| dice | 0 | 80 % | 500, 1,000 | 0.5 | 8,000, 4,000 | 2 | 60, 20 | 3 | 100 %, 50 % |")
    never = row(line, Spent(500, 8000, 60.0), 1.0, {**peer, "reached": None})
    assert "500, never in 9,000 | < 0.056" in never and "< 1.5" in never
    assert "never, 1,000 |  |" in row(line, None, 0.0, peer)


def test_the_peer_trains_and_its_line_can_be_written() -> None:
    pytest.importorskip("sb3_contrib")
    line = train("berries", 0, Budget(2048, 60.0))
    assert 2048 <= line["steps"] < 5000 and len(line["evaluations"]) == 2 and 0 <= line["test"] <= 1
    assert json.loads(json.dumps(line)) == line
