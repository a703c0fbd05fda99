"""Arms with critics in a run: what they are made from, what their checkpoints hold, how they play elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import reflectrl
from reflectrl import runs as pipeline
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import UserError
from reflectrl.methods import archer, linvit
from reflectrl.methods.shared.guided import ValueGuidedPolicy
from reflectrl.models.players import Policy
from reflectrl.runs.graph import planned
from reflectrl.tools.exporting.agents import export_agent
from tests.methods.conftest import Resumed, same_weights
from tests.runs.alone import of_methods, require_made_alone

Like = Callable[..., Any]
ARMS = {**archer.ARMS, **linvit.ARMS}
SMALL = (
    "arms=archer,linvit,linvit-no-reflection,linvit-untaught", "eval.sampling=greedy", "eval.splits=test", "env.test=2",
    "values.critic_steps=4", "values.critic_batch=8", "values.actor_steps=2", "values.actor_batch=8",
    "values.kl_lambda=0.01",
)  # fmt: skip
WEIGHTS = "checkpoints/seed0/{}/model.safetensors"
HEADS = "checkpoints/seed0/{}/heads.safetensors"


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, like: Like) -> Path:
    folder = tmp_path_factory.mktemp("values") / "run"
    pipeline.run(like(*SMALL), folder)
    return folder


def test_archer_moves_the_model_and_linvit_brings_a_critic(learned: Path) -> None:
    start = learned / WEIGHTS.format("policy")
    assert not same_weights(start, learned / WEIGHTS.format("archer")) and same_weights(
        start, learned / WEIGHTS.format("linvit")
    )
    assert same_weights(learned / WEIGHTS.format("plain"), learned / WEIGHTS.format("linvit-no-reflection"))
    assert same_weights(learned / WEIGHTS.format("base"), learned / WEIGHTS.format("linvit-untaught"))
    assert not (learned / HEADS.format("archer")).exists()
    assert {name.split(".")[0] for name in load_file(learned / HEADS.format("linvit"))} == {"q", "v"}


def test_arms_start_from_the_trained_pair(like: Like) -> None:
    graph = planned(like(f"arms={','.join(ARMS)}", "seeds=0,1"))
    for seed in (0, 1):
        for name in ("archer", "linvit"):
            assert graph[f"values {name} (seed {seed})"].inputs == (f"sft reflector (seed {seed})", f"sft policy (seed {seed})")  # fmt: skip  # noqa: E501
            plain = graph[f"values {name}-no-reflection (seed {seed})"]
            assert plain.inputs == (f"sft plain (seed {seed})",)
        assert graph[f"values linvit-untaught (seed {seed})"].inputs == (f"base model (seed {seed})",)


def test_each_artifact_is_made_from_its_inputs_alone(learned: Path, like: Like, tmp_path: Path) -> None:
    recipe = like(*SMALL)
    artifacts = of_methods(recipe)
    assert len(artifacts) == 4
    require_made_alone(recipe, learned, artifacts, tmp_path)


def test_they_read_reflections_where_they_are_to(learned: Path) -> None:
    for name, reflects in (
        ("archer", True),
        ("linvit", True),
        ("linvit-no-reflection", False),
        ("linvit-untaught", False),
    ):
        for episode in read_episodes(learned / f"episodes/eval-{name}-seed0-test-full-greedy.jsonl"):
            assert all((step.reflection is not None) == reflects for step in episode.steps)


def test_the_player_of_a_run_is_guided_and_so_is_an_exported_one(learned: Path, tmp_path: Path) -> None:
    def told(agent: Any) -> list[tuple[int, str | None, dict[str, float]]]:
        env, done = reflectrl.make_env("corridor", test=2), []
        for task in env.tasks("test"):
            env.reset(options={"task": task})
            agent.reset()
            while not env.done:
                done.append((agent.act(env.observe()), agent.reflection, dict(agent.probabilities)))
                env.step(done[-1][0])
        return done

    agent = reflectrl.load_agent(learned, "linvit")
    assert isinstance(agent.player, ValueGuidedPolicy) and agent.player.kl_lambda == 0.01
    assert type(reflectrl.load_agent(learned, "archer").player) is Policy
    export_agent(learned, "linvit", 0, tmp_path / "mine")
    assert not (tmp_path / "mine/reflector/heads.safetensors").exists()
    exported = reflectrl.load_agent(tmp_path / "mine")
    assert isinstance(exported.player, ValueGuidedPolicy)
    for mine, theirs in zip(told(exported), told(agent), strict=True):
        assert mine[:2] == theirs[:2] and mine[2] == pytest.approx(theirs[2], abs=1e-5)


def test_two_adapters_on_one_backbone(like: Like, tmp_path: Path, learned: Path) -> None:
    source = f"model.source={learned / 'checkpoints/seed0/base'}"
    pipeline.run(like(*SMALL, "arms=archer,linvit", source, "model.lora_rank=2"), tmp_path / "run")
    agent = reflectrl.load_agent(tmp_path / "run", "linvit")
    assert isinstance(agent.player, ValueGuidedPolicy) and agent.player.lm.adapter == "policy"
    assert (tmp_path / "run" / HEADS.format("linvit")).exists()


def test_a_checkpoint_that_lost_its_critic_is_refused(learned: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(learned, tmp_path / "copy"))
    (copy / HEADS.format("linvit")).unlink()
    (copy / "checkpoints/seed0/linvit/digests.json").unlink()
    with pytest.raises(UserError, match="linvit' comes without a critic"):
        reflectrl.load_agent(copy, "linvit")


@pytest.mark.parametrize("name", ["archer", "linvit"])
def test_a_killed_run_goes_on_to_the_same_bytes(learned: Path, like: Like, resumed: Resumed, name: str) -> None:
    copy = resumed(learned, like(*SMALL), name, 2)
    for kind in (WEIGHTS, HEADS):
        if (learned / kind.format(name)).exists():
            assert same_weights(learned / kind.format(name), copy / kind.format(name))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("values.kl_lambda=0", "values.kl_lambda"),
        ("values.target_rate=1.5", "values.target_rate"),
        ("values.actor_actions=some", "values.actor_actions"),
        ("values.buffer=4", "'buffer' is 4; it must be at least 'critic_batch' .8."),
        ("values.critic_step=4", "critic_steps"),
        ("arms=archr", "archer"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(like: Like, key: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned(like(*SMALL, key))
