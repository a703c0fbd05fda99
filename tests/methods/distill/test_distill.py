"""Distilled arms in a run: what they learn from, that they learn it, and that they play without a reflector."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import reflectrl
from reflectrl import runs as pipeline
from reflectrl.core.config import SFTConfig
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import Choice, Episode, Observation, Reflection, Step, Task, UserError
from reflectrl.methods.distilled import DistillConfig, Target, distillation_loss, targets, train_distilled
from reflectrl.models.players import Policy
from reflectrl.runs.graph import planned
from tests.methods.conftest import Resumed, same_weights
from tests.runs.alone import of_methods, require_made_alone

Like = Callable[..., Any]
SMALL = (
    "arms=sft,distilled-sft", "eval.sampling=greedy", "eval.splits=test", "env.test=2", "distill.episodes=2",
    "distill.steps=6", "distill.batch_size=8", "distill.eval_every=3", "distill.eval_episodes=2",
)  # fmt: skip
EPISODES = "episodes/distilled-sft-seed0.jsonl"
WEIGHTS = "checkpoints/seed0/distilled-sft/model.safetensors"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, like: Like) -> Path:
    folder = tmp_path_factory.mktemp("distill") / "run"
    pipeline.run(like(*SMALL), folder)
    return folder


def test_the_pair_plays_training_tasks_and_the_policy_reads_nothing_of_its_reflections(learned: Path) -> None:
    played = list(read_episodes(learned / EPISODES))
    assert len(played) == 2 * len({episode.task.id for episode in played}) == 2 * 6
    assert {episode.task.split for episode in played} == {"train"}
    assert all(step.reflection is not None for episode in played for step in episode.steps)
    alone = read_episodes(learned / "episodes/eval-distilled-sft-seed0-test-full-greedy.jsonl")
    assert all(step.reflection is None for episode in alone for step in episode.steps)
    assert reflectrl.load_agent(learned, "distilled-sft").reflector is None


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_policy_comes_to_choose_as_it_is_shown(learned: Path, shuffled: bool) -> None:
    """Each state has a first action; that is to be chosen with 90 %, under whatever label it stands."""
    policy = Policy(reflectrl.load_agent(learned, "sft").player.lm, shuffle_labels=shuffled)  # type: ignore[attr-defined]
    seen = {row.observation for row in targets(read_episodes(learned / EPISODES), DistillConfig())}
    others = {one: len(one.actions) - 1 for one in sorted(seen, key=str)}
    wanted = [Target(one, (0.9, *[0.1 / count] * count)) for one, count in others.items()]
    noted: list[dict[str, Any]] = []
    config = DistillConfig(steps=240, batch_size=16, eval_every=30)
    scores = {"eval_success": 0.0, "eval_return": 0.0}

    def better() -> dict[str, float]:
        scores["eval_success"] += 0.1  # so that the last weights are kept
        return scores

    train_distilled(policy, wanted, config, SFTConfig(lr=0.01), 0, lambda row: noted.append(dict(row)), better)
    assert [row["step"] for row in noted] == list(range(0, 241, 30)) and noted[-1]["kl"] < 0.5 * noted[1]["kl"]
    prompts = [policy.prompt(row.observation, None) for row in wanted]
    with torch.no_grad():
        logits_NA, _ = policy.logits(prompts, [row.observation.actions for row in wanted])
    chosen = [int(row[: len(one.probs)].argmax()) for row, one in zip(logits_NA, wanted, strict=True)]
    assert chosen.count(0) > 0.8 * len(chosen)


def test_the_full_methods_pair_is_made_where_no_arm_asks_for_it(like: Like) -> None:
    alone, beside = (planned(like(f"arms={arms}")) for arms in ("distilled", "reflect-rl,distilled"))
    assert alone["distill distilled (seed 0)"].inputs == beside["distill distilled (seed 0)"].inputs
    assert alone["rl reflect-rl (seed 0)"] == beside["rl reflect-rl (seed 0)"]
    assert not [key for key in alone if key.startswith("eval reflect-rl")]


def test_each_artifact_is_made_from_its_inputs_alone(learned: Path, like: Like, tmp_path: Path) -> None:
    recipe = like(*SMALL)
    artifacts = of_methods(recipe)
    assert len(artifacts) == 2
    require_made_alone(recipe, learned, artifacts, tmp_path)


def test_two_adapters_on_one_backbone(like: Like, tmp_path: Path, learned: Path) -> None:
    source = f"model.source={learned / 'checkpoints/seed0/base'}"
    pipeline.run(like(*SMALL, source, "model.lora_rank=2"), tmp_path / "run")
    assert reflectrl.load_agent(tmp_path / "run", "distilled-sft").player.lm.adapter == "policy"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="lora_rank above 0 it must be 'policy'"):
        planned(like(*SMALL, source, "model.lora_rank=2", "distill.start=reflector"))


def test_a_killed_run_goes_on_to_the_same_bytes(learned: Path, like: Like, resumed: Resumed) -> None:
    copy = resumed(learned, like(*SMALL), "distilled-sft", 6)
    assert same_weights(learned / WEIGHTS, copy / WEIGHTS)


def episode(success: bool, action: int, probs: tuple[float, ...]) -> Episode:
    seen = Observation("", "Here.\n", ("a", "b", "c"))
    turns = (Reflection("reflector", "Go."), Choice("policy", seen.actions[action], choice=action, probs=probs))
    return Episode(Task("t", "e"), (Step(seen, turns, action, 0.0),), success, False, 0)


def test_targets_are_what_the_pair_thought_or_did() -> None:
    played = [episode(True, 1, (0.2, 0.5, 0.3)), episode(False, 0, (0.6, 0.4, 0.0))]
    assert [row.probs for row in targets(played, DistillConfig())] == [(0.2, 0.5, 0.3), (0.6, 0.4, 0.0)]
    chosen = DistillConfig(target="chosen", won_only=True)
    assert [row.probs for row in targets(played, chosen)] == [(0.0, 1.0, 0.0)]
    with pytest.raises(UserError, match="won none of its episodes"):
        targets(played[1:], chosen)


def test_the_loss_is_the_divergence_over_listed_actions() -> None:
    half = math.log(0.5)
    logp_NA = torch.tensor([[half, half, -math.inf], [math.log(0.2), math.log(0.3), half]], requires_grad=True)
    target_NA = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    loss = distillation_loss(logp_NA, target_NA)
    assert float(loss.detach()) == pytest.approx(-half / 2)
    loss.backward()  # type: ignore[no-untyped-call]
    assert logp_NA.grad is not None and logp_NA.grad.isfinite().all()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("distill.target=hard", "distill.target"),
        ("distill.episodes=0", "distill.episodes"),
        ("distill.stps=1", "steps"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(like: Like, key: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned(like(*SMALL, key))
