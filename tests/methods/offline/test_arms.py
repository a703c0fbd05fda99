"""Offline arms: the log that they learn from, the parts in their order, and going on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reflectrl import runs as pipeline
from reflectrl.core.envs import make
from reflectrl.core.episodes import read_episodes, with_reflections, without_reflections
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.types import Choice, Episode, Observation, Step, Task, UserError
from reflectrl.methods import expert_iteration, offline
from reflectrl.methods.shared.offline.conditions import (
    ConditionPlayer,
    conditioned,
    outcome_text,
    return_text,
    share_text,
)
from reflectrl.methods.shared.offline.reference_cache import CARD
from reflectrl.runs.artifact import Graph
from reflectrl.runs.graph import planned
from tests.methods.conftest import Resumed, same_weights
from tests.runs.alone import of_methods, require_made_alone

Like = Callable[..., Any]
ARMS = {**offline.ARMS, **expert_iteration.ARMS}
SMALL = (
    "eval.sampling=greedy", "eval.splits=test", "offline.steps=4", "offline.reference_steps=3", "offline.eval_every=2",
    "offline.batch_size=4", "offline.value_epochs=1", "offline.value_episodes=1", "offline.log_episodes=2",
    "offline.eval_episodes=2", "offline.rounds=2", "offline.round_episodes=1", "env.train=4", "env.test=2",
    "offline.critic_steps=40", "offline.target_rate=0.5",
)  # fmt: skip
ARMS_OF = "arms=offline-reference,offline-a_lol,offline-archer,offline-dpo,offline-rvs,offline-online"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, like: Like) -> Path:
    folder = tmp_path_factory.mktemp("offline") / "run"
    pipeline.run(like(*SMALL, ARMS_OF), folder)
    return folder


def log_of(run: Path) -> list[Any]:
    return list(read_episodes(run / "episodes/offline-seed0.jsonl"))


def test_the_log_holds_the_teachers_trajectories_and_the_policys_episodes(learned: Path) -> None:
    kinds = [episode.provenance["player"] for episode in log_of(learned)]
    assert kinds == ["teacher"] * (4 * 2) + ["policy"] * (4 * 2)  # two noises; two episodes of each task
    assert {episode.task.split for episode in log_of(learned)} == {"train"}
    assert all(episode.provenance.get("kind") in ("trajectory", None) for episode in log_of(learned))


def test_parts_lie_where_they_belong(learned: Path) -> None:
    assert {path.name for path in (learned / "checkpoints/seed0").iterdir()} == {
        "base", "plain", "offline-reference", "offline-value", "offline-a_lol", "offline-dpo", "offline-rvs",
        "offline-critic", "offline-critic-features", "offline-archer", "rl-offline-online",
    }  # fmt: skip
    lines = [json.loads(line) for line in (learned / "metrics.jsonl").read_text().splitlines()]
    steps = {arm: [x["step"] for x in lines if x["arm"] == arm] for arm in ("offline-reference", "offline-dpo")}
    assert steps == {"offline-reference": [0, 2, 3], "offline-dpo": [0, 2, 4]}
    assert [x["step"] for x in lines if x["kind"] == "offline_value"] == [1]
    assert [x["step"] for x in lines if x["kind"] == "offline_critic"] == [*range(2, 41, 2)]
    rows = json.loads((learned / "results.json").read_text())["rows"]
    assert [row["arm"] for row in rows if row["stage"] == "full"] == ARMS_OF.removeprefix("arms=").split(",")


def test_each_artifact_is_made_from_its_inputs_alone(learned: Path, like: Like, tmp_path: Path) -> None:
    recipe = like(*SMALL, ARMS_OF)
    artifacts = of_methods(recipe)
    assert len(artifacts) == 7
    require_made_alone(recipe, learned, artifacts, tmp_path)


def test_a_second_call_makes_nothing_and_a_lost_part_is_made_again_the_same(
    learned: Path, tmp_path: Path, like: Like, capsys: Any
) -> None:
    copy = Path(shutil.copytree(learned, tmp_path / "copy"))
    part = copy / "checkpoints/seed0/offline-a_lol"
    before = load_file(part / "model.safetensors")
    capsys.readouterr()
    pipeline.run(like(*SMALL, ARMS_OF), copy, "eval")
    assert "seed 0" not in capsys.readouterr().out
    shutil.rmtree(part)
    pipeline.run(like(*SMALL, ARMS_OF), copy, "eval")
    after = load_file(part / "model.safetensors")
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_stale_reference_cache_is_refused_by_name(learned: Path, tmp_path: Path, like: Like) -> None:
    copy = Path(shutil.copytree(learned, tmp_path / "copy"))
    card = copy / "checkpoints/seed0/offline-value" / CARD
    card.write_text(json.dumps(json.loads(card.read_text()) | {"code": "0" * 16}), encoding="utf-8")
    (card.parent / "digests.json").unlink()
    shutil.rmtree(copy / "checkpoints/seed0/offline-a_lol")
    with pytest.raises(UserError, match="made with other code"):
        pipeline.run(like(*SMALL, ARMS_OF), copy, "eval")


def test_a_killed_arm_with_a_critic_goes_on_to_the_same_weights(learned: Path, like: Like, resumed: Resumed) -> None:
    copy = resumed(learned, like(*SMALL, ARMS_OF), "offline-archer", gone=("offline-critic",))
    archer = "checkpoints/seed0/offline-archer/model.safetensors"
    assert same_weights(learned / archer, copy / archer)


def test_return_conditioned_play_is_told_what_is_still_to_come(learned: Path) -> None:
    for episode in read_episodes(learned / "episodes/eval-offline-rvs-seed0-test-full-greedy.jsonl"):
        target = 1.0
        for step in episode.steps:
            assert step.reflection == return_text(target)
            target -= step.reward


def test_what_is_still_to_come_is_discounted_as_in_the_demonstrations() -> None:
    """A player that asks for the return of a logged episode asks at each step what the log states there."""
    seen = Observation("", "room", ("left", "right"))
    steps = [Step(seen, (Choice("teacher", "1", 0),), 0, reward) for reward in (0.0, -1.0, 2.0)]
    episode = Episode(Task("1", "", {}), tuple(steps), True, False, 0)
    [shown] = conditioned([episode], "return", gamma=0.5)
    player = ConditionPlayer("return", target=0.0, gamma=0.5)
    live = LiveEpisode(make({"name": "corridor"}), episode.task, 0, np.random.default_rng(0), seen)
    for told, step in zip(shown.steps, steps, strict=True):
        [asked] = player.turns([live])
        assert asked.text == told.reflection
        live.steps.append(step)
    [asked] = ConditionPlayer("return", target=1.0, gamma=0.0).turns([live])
    assert asked.text == return_text(1.0)


def ancestors(graph: Graph, key: str) -> set[str]:
    return {key}.union(*(ancestors(graph, name) for name in graph[key].inputs))


def test_artifacts_wait_for_what_they_need(like: Like) -> None:
    arms = "arms=offline-a_lol,offline-reference,offline-rvs,offline-expert-iteration,offline-archer,offline-online"
    graph = planned(like(arms, "seeds=0,1"))
    keys = list(graph)
    assert all(keys.index(name) < keys.index(key) for key in keys for name in graph[key].inputs)
    for seed in (0, 1):
        needed = {
            name: {
                key.split()[1] for key in ancestors(graph, f"eval {name} (seed {seed})") if "offline" in key.split()[0]
            }
            for name in like(arms).arms
        }
        assert needed["offline-rvs"] == {"offline-rvs"}
        assert needed["offline-reference"] == {"offline-reference"}
        assert needed["offline-expert-iteration"] == {"offline-reference", "offline-expert-iteration"}
        assert needed["offline-archer"] == {"offline-reference", "offline-archer"}
        assert needed["offline-online"] == {"offline-reference", "offline-value", "offline-a_lol"}
        for key in ancestors(graph, f"eval offline-a_lol (seed {seed})"):
            assert graph[key].seed == seed


def test_offline_arms_need_no_sft_of_their_own(like: Like) -> None:
    graph = planned(like("arms=offline-a_lol", "offline.log_episodes=0"))
    assert not [key for key in graph if key.startswith("sft")]
    assert all(arm.policy is not None for arm in ARMS.values())


def test_the_log_is_replayed_online(tmp_path: Path, like: Like) -> None:
    recipe = like(*SMALL, "arms=no-reflection,reflect-rl", "rl.replay_log=2", "rl.updates=3", "rl.replay=0")
    pipeline.run(recipe, tmp_path / "run", "eval")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for arm in ("no-reflection", "reflect-rl"):
        assert any("replay_loss" in line for line in lines if line["arm"] == arm)


def test_without_rollouts_the_value_is_that_of_the_log(learned: Path, tmp_path: Path, like: Like) -> None:
    recipe = like(*SMALL, "arms=offline-a_lol_ref_free", "offline.value_from=log", "offline.log_episodes=0")
    pipeline.run(recipe, tmp_path / "run", "eval")
    assert not (tmp_path / "run/checkpoints/seed0/plain").exists()
    assert {episode.provenance["player"] for episode in log_of(tmp_path / "run")} == {"teacher"}


class TestViews:
    def test_reflections_are_taken_away_or_asked_for(self, learned: Path) -> None:
        log = log_of(learned)
        assert all(step.reflection is None for one in without_reflections(log) for step in one.steps)
        assert [one.provenance["player"] for one in with_reflections(log)] == ["teacher"] * 8

    def test_returns_are_the_rewards_to_go(self, learned: Path) -> None:
        for told, plain in zip(conditioned(log_of(learned), "return"), log_of(learned), strict=True):
            for t, step in enumerate(told.steps):
                to_go = sum(later.reward for later in plain.steps[t:])
                assert step.reflection == return_text(to_go) and step.choice == plain.steps[t].choice

    def test_shares_compare_episodes_of_the_same_task(self, learned: Path) -> None:
        log = log_of(learned)
        told = list(conditioned(log, "share"))
        for task in {episode.task.id for episode in log}:
            own = [episode for episode in told if episode.task.id == task]
            returns = [sum(step.reward for step in episode.steps) for episode in own]
            best = own[returns.index(max(returns))]
            assert {step.reflection for step in best.steps} == {share_text(1.0)}
            if len(set(returns)) > 1:
                worst = own[returns.index(min(returns))]
                assert {step.reflection for step in worst.steps} == {share_text(0.0)}

    def test_outcomes_are_those_of_the_episodes(self, learned: Path) -> None:
        for episode in conditioned(log_of(learned), "outcome"):
            assert {step.reflection for step in episode.steps} == {outcome_text(episode.success)}


def test_an_offline_log_that_lost_episodes_is_written_again(
    tmp_path: Path, like: Like, said: Callable[[Path], dict[str, str]]
) -> None:
    recipe, run = like(*SMALL, "arms=offline-reference"), tmp_path / "run"
    pipeline.run(recipe, run, "eval")
    before, log = said(run), run / "episodes/offline-seed0.jsonl"
    shutil.rmtree(run / "checkpoints/seed0/offline-reference")
    for data in (b"", log.read_bytes()[:-300]):
        log.write_bytes(data)
        pipeline.run(recipe, run, "eval")
        assert said(run) == before


def test_every_offline_arm_plays(tmp_path: Path, like: Like) -> None:
    pipeline.run(like(*SMALL, f"arms={','.join(ARMS)}", "rl.algorithm=ppo", "rl.baseline=critic"), tmp_path, "eval")
    summary = json.loads((tmp_path / "results.json").read_text())["summary"]
    whole = [line for line in summary if line["stage"] == "full"]
    assert [line["arm"] for line in whole] == list(ARMS)
    assert all(0 <= line["success"] <= 1 for line in whole)
