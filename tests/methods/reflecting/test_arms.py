"""Arms that train the reflector in a run: what they are made from, how they play elsewhere, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import reflectrl
from reflectrl import runs as pipeline
from reflectrl.core.types import UserError
from reflectrl.methods import reflector_rejection
from reflectrl.methods.reflector_rl import ARMS as RL_ARMS
from reflectrl.methods.reflector_rl import reflector_rl
from reflectrl.methods.shared.reflecting import trained_pair
from reflectrl.runs.artifact import Plan
from reflectrl.runs.graph import planned
from reflectrl.tools.exporting.agents import export_agent
from tests.methods.conftest import Resumed, same_weights
from tests.methods.reflecting.conftest import OnlyExpert, Signs
from tests.runs.alone import of_methods, require_made_alone

Like = Callable[..., Any]
ARMS = {**RL_ARMS, **reflector_rejection.ARMS}
SMALL = (
    "arms=reflector-rl,both-rl,reflector-rejection", "eval.sampling=greedy", "eval.splits=test", "env.test=2",
    "reflecting.states=3", "reflecting.samples=2", "reflecting.continuations=1", "reflecting.rounds=2",
    "reflecting.steps=2", "reflecting.lr=0.01", "rl.algorithm=ppo", "eval.batch=8",
)  # fmt: skip
WEIGHTS = "checkpoints/seed0/{}/model.safetensors"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, like: Like) -> Path:
    folder = tmp_path_factory.mktemp("reflecting") / "run"
    pipeline.run(like(*SMALL), folder, "eval")
    return folder


def test_arms_start_from_the_trained_pair_and_a_pair_is_made_once(like: Like) -> None:
    made = planned(like(f"arms={','.join(ARMS)}", "seeds=0,1"))
    for seed in (0, 1):
        pair = (f"sft reflector (seed {seed})", f"sft policy (seed {seed})")
        assert all(made[f"reflecting {name} (seed {seed})"].inputs == pair for name in ARMS)
        assert len(made[f"reflecting both-rl (seed {seed})"].outputs) == 2
    assert not any("both-rl-reflector" in key for key in made)


def test_each_artifact_is_made_from_its_inputs_alone(learned: Path, like: Like, tmp_path: Path) -> None:
    recipe = like(*SMALL)
    artifacts = of_methods(recipe)
    assert len(artifacts) == 3
    require_made_alone(recipe, learned, artifacts, tmp_path)


def test_the_trained_reflector_is_loaded_and_exported(learned: Path, tmp_path: Path) -> None:
    for name, (policy, reflector) in {
        "reflector-rl": ("policy", "reflector-rl"),
        "both-rl": ("both-rl", "both-rl-reflector"),
        "reflector-rejection": ("policy", "reflector-rejection"),
    }.items():
        agent = reflectrl.load_agent(learned, name)
        wanted = [load_file(learned / WEIGHTS.format(one)) for one in (policy, reflector)]
        export_agent(learned, name, 0, tmp_path / name)
        exported = reflectrl.load_agent(tmp_path / name)
        for players in (agent, exported):
            for player, weights in zip((players.player, players.reflector), wanted, strict=True):
                found: dict[str, torch.Tensor] = player.lm.weights()  # type: ignore[union-attr]
                assert all(torch.equal(tensor, found[key]) for key, tensor in weights.items())


def test_the_curriculum_of_rejection_sampling_goes_on_with_its_rounds(learned: Path) -> None:
    lines = [
        json.loads(line) for line in (learned / "metrics/seed0-reflector-rejection.jsonl").read_text().splitlines()
    ]
    stages = [line["stage"] for line in lines if "judged" in line]
    assert len(stages) == len(set(stages)) == 2


@pytest.mark.parametrize("name", list(ARMS))
def test_a_killed_run_goes_on_to_the_same_bytes(learned: Path, like: Like, resumed: Resumed, name: str) -> None:
    copy = resumed(learned, like(*SMALL), name, 2)
    for folder in (learned / "checkpoints/seed0").glob(f"{name}*"):
        assert same_weights(folder / "model.safetensors", copy / WEIGHTS.format(folder.name))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("reflecting.temperature=0", "reflecting.temperature"),
        ("reflecting.samples=1", "reflecting.samples"),
        ("reflecting.signal=praise", "reflecting.signal"),
        ("reflecting.ratio=word", "reflecting.ratio"),
        ("reflecting.kl_coeff=1", "kl_coef"),
        ("rl.reflect_probability=0", "rl.reflect_probability is 0; arm 'reflector-rl' learns from reflections"),
        ("rl.curriculum=gat", "rl.curriculum"),
        ("arms=reflector-r", "reflector-rl"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(like: Like, key: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned(like(*SMALL, key))


def test_an_arm_without_a_reflector_is_refused_before_anything_is_made(like: Like) -> None:
    """As a package's own arm might be."""
    with pytest.raises(UserError, match="'mine' trains a reflector but names none to start from"):
        trained_pair(reflector_rl, "mine", Plan(like(), 0), reflector=None)


def test_an_environment_without_an_analyst_is_refused_by_the_arm(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Pathless has no analyst, which arm 'reflector-rl' would need"):
        reflectrl.train(Pathless, tmp_path / "run", arms=["reflector-rl"])
    assert not (tmp_path / "run").exists()


class Pathless(Signs):
    """Signs with somebody who knows the way, and nobody to explain it."""

    teacher = OnlyExpert()


def test_two_adapters_on_one_backbone(like: Like, tmp_path: Path, learned: Path) -> None:
    source = f"model.source={learned / 'checkpoints/seed0/base'}"
    pipeline.run(like(*SMALL, "arms=both-rl", source, "model.lora_rank=2"), tmp_path / "run", "eval")
    agent = reflectrl.load_agent(tmp_path / "run", "both-rl")
    policy, reflector = (player.lm for player in (agent.player, agent.reflector))  # type: ignore[union-attr]
    assert (policy.adapter, reflector.adapter) == ("policy", "reflector") and policy.model is reflector.model
