"""Texts in hindsight: what they say, the exact loss beside enumeration, and the arms in a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import reflectrl
from benchmarks.gradients import PLAIN, Recorder
from reflectrl import runs as pipeline
from reflectrl.core.config import RLConfig
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Observation, Sampling, UserError
from reflectrl.learn.losses import restricted_log_softmax
from reflectrl.learn.online import train_online, update
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.methods.hindsight import (
    HindsightConfig,
    HindsightTexts,
    analyst_texts,
    continuation_texts,
    hindsight_loss,
    hindsight_rollouts,
    observation_texts,
    outcome_texts,
)
from reflectrl.models.players import Policy
from tests.learn.conftest import Rooms
from tests.runs.alone import of_methods, require_made_alone

Tiny = Callable[..., Any]


def strong(tiny: Tiny, **settings: Any) -> Policy:
    """A policy with larger weights than an untrained one's, so that a text changes what it does."""
    policy = Policy(tiny(**settings))
    with torch.no_grad():
        for weight in policy.lm.parameters():
            weight *= 2.5
    return policy


def rollouts_of(
    policy: Policy, config: RLConfig, settings: HindsightConfig, seed: int, reward: bool = True
) -> EpisodeRollouts:
    return hindsight_rollouts(policy, Rooms, config, HindsightTexts(Rooms, settings, seed, reward))


def played(policy: Policy, count: int = 12) -> list[Episode]:
    tasks = Rooms().tasks("train")
    jobs = [Job(tasks[i % len(tasks)], i) for i in range(count)]
    return sorted(rollout(jobs, Rooms, policy), key=lambda episode: episode.seed)


# ---- the loss --------------------------------------------------------------------------------------------------------


def test_the_loss_by_hand() -> None:
    """KL((3/4, 1/4) || (1/2, 1/2)) and a step whose third action is illegal; the gate leaves the last one out."""
    logits_NA = torch.zeros(3, 3, requires_grad=True)
    legal_NA = torch.tensor([[True, True, False], [True, True, True], [True, True, False]])
    logp_NA = restricted_log_softmax(logits_NA, legal_NA)
    teacher_NA = torch.tensor([[0.75, 0.25, 0.0], [0.2, 0.3, 0.5], [0.9, 0.1, 0.0]]).log()
    loss = hindsight_loss(logp_NA, teacher_NA, torch.tensor([1.0, 1.0, 0.0]))
    first = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    second = sum(p * math.log(3 * p) for p in (0.2, 0.3, 0.5))
    assert loss.item() == pytest.approx((first + second) / 3)
    loss.backward()
    # The gradient by the logits is (policy - teacher) / N; nothing flows into illegal or gated entries.
    expected = [[(0.5 - 0.75) / 3, (0.5 - 0.25) / 3, 0.0], [(1 / 3 - p) / 3 for p in (0.2, 0.3, 0.5)], [0.0] * 3]
    torch.testing.assert_close(logits_NA.grad, torch.tensor(expected))


def logp_of(policy: Policy, seen: Observation, text: str | None) -> Tensor:
    """Return the log-probabilities of the listed actions."""
    return policy.logits([policy.prompt(seen, text)], [seen.actions])[0][0, : len(seen.actions)].log_softmax(-1)


def enumerated(policy: Policy, gate: str) -> list[Tensor]:
    """Return the gradient of the expected summed loss of an episode, over all tasks, actions and gates."""
    env, parameters = Rooms(), policy.lm.parameters()
    total = [torch.zeros_like(p) for p in parameters]
    for task in env.tasks("train"):
        env.reset(options={"task": task})
        reached, left = 1.0, [0.0, 0.0]
        steps = []
        for room in range(2):
            seen, text = env.observe(), env.teacher.analyse(env)
            logp_A, teacher_A = logp_of(policy, seen, None), logp_of(policy, seen, text).detach()
            chance_A, gain_A = logp_A.detach().exp(), (teacher_A - logp_A.detach())
            left[room] = float(chance_A[1])
            steps.append((reached, logp_A, teacher_A, chance_A, gain_A))
            reached *= left[room]
            env.step(1)
        for room, (reached, logp_A, teacher_A, chance_A, gain_A) in enumerate(steps):
            # "left" returns 1 if the next room is passed too, and 0 if not; in the last room always 0.5.
            good = left[1] if room == 0 else 1.0
            agrees = [chance * float(gain < 0) for chance, gain in zip(chance_A, gain_A, strict=True)]
            agrees[1] = float(chance_A[1]) * good * float(gain_A[1] > 0)
            share = reached * (1.0 if gate == "all" else float(sum(agrees)))
            loss = share * (teacher_A.exp() * (teacher_A - logp_A)).sum()
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            total = [one if new is None else one + new for one, new in zip(total, found, strict=True)]
    return total


@pytest.mark.parametrize("gate", ["all", "agree"])
def test_the_gradient_is_the_enumerated_one(tiny: Tiny, gate: Any) -> None:
    policy = strong(tiny)
    config = RLConfig(**{**PLAIN, "episodes": 4000})
    settings = HindsightConfig(text="analyst", gate=gate, coef=0.7)
    rollouts = rollouts_of(policy, config, settings, seed=5, reward=False)
    batch = rollouts.collect(0, None)
    recorder = Recorder(rollouts.policy, None)
    update(recorder, None, batch, config, epochs=1)
    estimate_D = (
        recorder.gradients[0] * len(batch.labels_N) / 4000 / 0.7
    )  # from the mean over steps to an episode's sum
    exact_D = torch.cat([g.flatten() for g in enumerated(policy, gate)]) / 4
    assert 0 < batch.metrics["hindsight_share"] <= 1
    assert torch.cosine_similarity(estimate_D, exact_D, dim=0) >= 0.999
    assert float(estimate_D.norm() / exact_D.norm()) == pytest.approx(1, abs=0.05)


# ---- the texts -------------------------------------------------------------------------------------------------------


def test_texts_from_what_followed(tiny: Tiny) -> None:
    episodes = played(Policy(tiny(), Sampling(1.0)), 40)
    won = next(episode for episode in episodes if episode.success)
    lost = next(episode for episode in episodes if not episode.success and len(episode.steps) == 2)
    assert outcome_texts(won) == ["left: won 2 steps later", "left: won 1 steps later"]
    assert outcome_texts(lost) == ["left: lost 2 steps later", "right: lost 1 steps later"]
    colour = won.task.payload["colour"]
    assert observation_texts(won) == [f"left: A {colour} room, number 1.", "left: won"]
    assert analyst_texts(won, Rooms()) == ["Room 0, go left.", "Room 1, go left."]
    tried = continuation_texts(won, [Rooms(), Rooms()], Policy(tiny()), HindsightConfig(actions=0), seed=0)
    assert tried[1] == "right: won 0 of 2; left: won 2 of 2; best: left"
    assert tried[0] is None or tried[0].endswith("best: left")


def test_without_an_analyst_a_line_names_what_needs_none(tiny: Tiny) -> None:
    class Mute(Rooms):
        teacher = Teacher()

    with pytest.raises(
        UserError, match="hindsight.text is 'analyst', but Mute has no analyst; 'continuations'"
    ) as error:
        analyst_texts(played(Policy(tiny()))[0], Mute())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["analyst", "continuations", "outcome", "observation"])
def test_every_text_gives_a_batch_with_minibatches(tiny: Tiny, text: Any) -> None:
    policy = Policy(tiny(), shuffle_labels=True)
    config = RLConfig(**{**PLAIN, "episodes": 12, "steps_per_epoch": 3, "minibatch": 4})
    rollouts = rollouts_of(policy, config, HindsightConfig(text=text, gate="all"), seed=1)
    batch = rollouts.collect(0, None)
    recorder = Recorder(rollouts.policy, None)
    metrics = update(recorder, None, batch, config, epochs=1)
    assert len(recorder.gradients) == 3 and metrics["auxiliary_loss"] > 0
    assert metrics["hindsight_share"] == 1 if text != "continuations" else 0 < metrics["hindsight_share"] <= 1


# ---- training --------------------------------------------------------------------------------------------------------

LEARNING = RLConfig(
    algorithm="ppo", baseline="critic", updates=6, episodes=12, eval_every=2, eval_episodes=2, curriculum="none",
    kl_coef=0.0, self_imitation=True,
)  # fmt: skip


@pytest.mark.parametrize(("reward", "teacher"), [(True, "current"), (False, "current"), (False, "initial")])
def test_a_stopped_training_continues_with_the_same_bits(
    tiny: Tiny, tmp_path: Path, reward: bool, teacher: Any
) -> None:
    def trained(folder: Path, stop: int | None) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []

        def log(line: dict[str, Any]) -> None:
            lines.append(line)
            if line["step"] == stop:
                raise KeyboardInterrupt

        rollouts = rollouts_of(Policy(tiny()), LEARNING, HindsightConfig(teacher=teacher), 2, reward)
        train_online(rollouts, LEARNING, 2, log, folder)
        return lines

    whole = trained(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", 3)
    rest = trained(tmp_path / "stopped", None)
    assert rest[0]["step"] > 0 and rest == whole[-len(rest) :]


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_the_initial_policy_stays_the_teacher(tiny: Tiny, lora_rank: int) -> None:
    """What it reads from a text is the same after the policy's weights have changed; the policy's own choice is not."""
    kept = {}
    for teacher in ("current", "initial"):
        policy = strong(tiny, lora_rank=lora_rank)
        settings = HindsightConfig(gate="all", teacher=teacher)  # type: ignore[arg-type]
        rollouts = rollouts_of(policy, RLConfig(**{**PLAIN, "episodes": 4}), settings, seed=1)
        batch = rollouts.collect(0, None)
        texts = rollouts.supplement.texts(policy, rollouts.latest.learned)
        before_NA = rollouts.supplement.taught(rollouts, batch, texts)[0]
        with torch.no_grad():
            for parameter in policy.lm.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        after_NA = rollouts.supplement.taught(rollouts, batch, texts)[0]
        kept[teacher] = torch.equal(before_NA, after_NA)
    assert kept == {"current": False, "initial": True}


def test_the_arms_of_a_run_play_without_a_reflector(tmp_path: Path, like: Callable[..., Any]) -> None:
    """With a policy that learned to read, texts and the control differ; the control depends on no setting of theirs."""
    arms = ("hindsight", "hindsight-only", "no-hindsight")
    recipe = like(f"arms={','.join(arms)}", "eval.sampling=greedy", "eval.splits=test", "env.test=2", "rl.updates=2")
    folder = tmp_path / "run"
    pipeline.run(recipe, folder)
    for arm in arms:
        lines = [json.loads(line) for line in (folder / f"metrics/seed0-{arm}.jsonl").read_text().splitlines()]
        assert ("hindsight_share" in lines[0]) == (arm != "no-hindsight")
        assert reflectrl.load_agent(folder, arm).reflector is None
    require_made_alone(recipe, folder, of_methods(recipe), tmp_path / "alone")


def test_reverse_starts_are_refused(tmp_path: Path, like: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="arm 'hindsight' plays whole episodes again .* set rl.reverse to 0"):
        pipeline.run(like("arms=hindsight", "rl.reverse=0.5", "rl.episodes=4"), tmp_path / "run")
