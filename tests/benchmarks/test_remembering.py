"""The program about notes: each arm has its own past, finished cells are kept, and the table has a row per arm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import remembering
from benchmarks.hidden_fusebox import HiddenFusebox


def test_the_arms_differ_in_what_a_player_has_of_the_past() -> None:
    recipes = {arm: remembering.recipe_of(remembering.Settings(), "alfworld", arm, 3) for arm in remembering.ARMS}
    assert [arm for arm in recipes if recipes[arm]["play"].get("reflection") == "carried"] == ["carried"]
    assert [arm for arm in recipes if recipes[arm]["env"]["status"]] == ["written"]
    assert [arm for arm in recipes if recipes[arm]["arms"] == ["sft"]] == ["fresh", "carried"]
    for recipe in recipes.values():
        assert recipe["sft"] == recipes["none"]["sft"] and recipe["teach"] == recipes["none"]["teach"]


def test_every_arm_is_a_line_and_the_same_command_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {**remembering.LIGHTS, "sft": {"steps": 1, "policy_steps": 1}}
    quick["env"] = {**quick["env"], "length": 2}
    monkeypatch.setitem(remembering.WORLDS, "lights", quick)  # type: ignore[index]
    settings = remembering.Settings(arms=("carried", "written"), seeds=(0,), episodes=2, out=tmp_path / "cells")
    for _ in range(2):
        remembering.main(settings)
    [line] = [json.loads(text) for text in (tmp_path / "cells.jsonl").read_text().splitlines()]
    assert (line["arm"], line["tasks"]) == ("carried", 2) and 0 <= line["success"] <= 1
    assert line["train_seconds"] > 0 and line["play_seconds"] > 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| lights | `carried` | 1 | ")


def test_with_updates_the_pair_and_the_policy_alone_go_on_by_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {**remembering.LIGHTS, "sft": {"steps": 1, "policy_steps": 1}}
    quick["env"] = {**quick["env"], "length": 2}
    monkeypatch.setitem(remembering.WORLDS, "lights", quick)  # type: ignore[index]
    fewer = {**remembering.RL, "episodes": 2, "eval_every": 1, "eval_episodes": 2, "critic_warmup": 0}
    monkeypatch.setattr(remembering, "RL", fewer)
    settings = remembering.Settings(arms=("none", "carried"), seeds=(0,), episodes=2, updates=1, out=tmp_path / "cells")
    remembering.main(settings)
    lines = [json.loads(text) for text in (tmp_path / "cells.jsonl").read_text().splitlines()]
    assert [(line["arm"], line["updates"]) for line in lines] == [("none", 1), ("carried", 1)]
    assert all(0 <= line["imitated"] <= 1 for line in lines)
    for arm, trained in (("carried", "reflect-rl"), ("none", "no-reflection")):
        assert (tmp_path / f"cells/lights-{arm}-0/checkpoints/seed0/rl-{trained}/reflectrl.json").exists()
    assert "| before RL, % |" in capsys.readouterr().out


def test_longer_training_multiplies_the_steps_of_every_arm() -> None:
    for arm in remembering.ARMS:
        short, long = (
            remembering.recipe_of(remembering.Settings(longer=factor), "alfworld", arm, 0)["sft"] for factor in (1, 6)
        )
        assert (long["steps"], long["policy_steps"]) == (6 * short["steps"], 6 * short["policy_steps"])


def test_the_hidden_fusebox_is_won_by_notes_and_shows_the_same_hall_before_and_after() -> None:
    env = HiddenFusebox()
    for task in env.tasks("test"):
        observation = env.reset(seed=0, options={"task": task})[0]
        halls, notes = [], []
        while not env.done:
            if env.room == "hall":
                halls.append(observation)
                notes.append(env.teacher.analyse(env))
            observation, *_ = env.step(env.teacher.expert_action(env))
        assert env.live and halls[0] == halls[1] != halls[2]
        assert notes[0] == "Nothing yet." and f"Unplugged: {env.shorted}." in notes[1]


def test_an_early_flip_and_a_wrong_device_in_the_hidden_fusebox() -> None:
    env = HiddenFusebox()
    [task, *_] = env.tasks("test")
    env.reset(seed=0, options={"task": task})
    env.step(list(env.legal_actions()).index("flip breaker"))
    assert env.done and not env.live
    env.reset(seed=0, options={"task": task})
    for action in (f"enter {env.dark}", f"unplug {env.sound}"):
        env.step(list(env.legal_actions()).index(action))
    while not env.done:
        env.step(env.teacher.expert_action(env))
    assert env.live
