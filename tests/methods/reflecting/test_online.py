"""RL of the reflector: its gradient by hand, what it learns to say, and that a kill changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.prompts import reflector_prompt, tokenize
from reflectrl.core.rollout import Job, rollout
from reflectrl.learn.trainer import Trainer, weights_of
from reflectrl.methods.reflector_rl import train_reflector, update_reflector
from reflectrl.methods.shared.reflecting import ReflectingConfig
from reflectrl.methods.shared.reflection_rollouts import ReflectionRollouts, reflection_of
from reflectrl.methods.shared.sampled_reflector import SampledReflector
from reflectrl.models.players import Policy, Reflector
from tests.methods.reflecting.conftest import WAYS, Obedient, Signs, observations

Pair = Callable[..., tuple[Policy, Reflector]]
Metrics = list[dict[str, Any]]

RL = RLConfig(
    algorithm="ppo", updates=20, episodes=32, update_epochs=2, steps_per_epoch=4, clip_coef=0.2, lr=1e-2, eval_every=5,
    eval_episodes=4, replay=0, replay_episodes=0, kl_coef=0.0, entropy_coef=0.0, max_grad_norm=1.0,
)  # fmt: skip
SETTINGS = ReflectingConfig(lr=1e-2, kl_coef=0.0)


def rollouts_of(
    policy: Policy,
    reflector: Reflector,
    config: RLConfig = RL,
    settings: ReflectingConfig = SETTINGS,
    both: bool = False,
) -> ReflectionRollouts:
    return ReflectionRollouts(policy, reflector, Signs, config, settings, 0, both)


def train(
    policy: Policy,
    reflector: Reflector,
    config: RLConfig = RL,
    settings: ReflectingConfig = SETTINGS,
    log: Any = None,
    **more: Any,
) -> Metrics:
    found: Metrics = []
    train_reflector(
        rollouts_of(policy, reflector, config, settings, more.get("both", False)),
        config,
        settings,
        0,
        log or found.append,
        **more,
    )
    return found


def test_what_was_drawn_is_noted_whole(pair: Pair) -> None:
    """Tokens with end-of-text, and the probabilities that the model itself gives them; a log keeps both."""
    policy, reflector = pair()
    lm, temperature = reflector.lm, 1.5
    jobs = [Job(task, i) for i in range(3) for task in Signs().tasks("train")]
    for episode in rollout(jobs, Signs, policy, SampledReflector(reflector, temperature)):
        for step in from_line(to_line(episode)).steps:
            turn = reflection_of(step)
            assert (
                turn is not None and turn.text == lm.tokenizer.decode(turn.token_ids, skip_special_tokens=True).strip()
            )
            ended = turn.token_ids[-1] == lm.tokenizer.eos_token_id
            assert ended or len(turn.token_ids) == reflector.max_new_tokens
            prompt = tokenize(lm, reflector_prompt(step.observation), reserve=6)
            logits_TV = lm.core(input_ids=torch.tensor([[*prompt, *turn.token_ids]])).logits[0, len(prompt) - 1 : -1]
            logp_T = (logits_TV / temperature).log_softmax(-1)[range(len(turn.token_ids)), turn.token_ids]
            assert turn.logprobs == pytest.approx(logp_T.tolist(), abs=1e-4)


def test_its_critic_may_learn_in_some_updates_only(pair: Pair) -> None:
    config = replace(RL, updates=4, episodes=8, baseline="critic", critic_warmup=0, critic_every=2, eval_every=4)
    log = train(*pair(), config)
    assert [line["step"] for line in log if "reflection_value_loss" in line] == [1, 3]


@pytest.mark.parametrize("ratio", ["token", "reflection"])
def test_the_gradient_by_hand(pair: Pair, ratio: Any) -> None:
    """At the first step it is that of −mean A log pi: over tokens, or over reflections with their mean log pi."""
    policy, reflector = pair()
    config = replace(RL, steps_per_epoch=1, update_epochs=1, normalise=False, max_grad_norm=1e9, minibatch=3)
    rollouts = rollouts_of(policy, reflector, config, replace(SETTINGS, ratio=ratio, lr=0.0))
    rollouts.collect(0, None)
    drawn, lm = rollouts.reflections(None), reflector.lm
    parts = []
    for row, advantage in zip(drawn.rows, drawn.advantages_R.tolist(), strict=True):
        logits_TV = lm.core(input_ids=torch.tensor([row.ids])).logits[0, row.start - 1 : -1]
        logp_T = logits_TV.log_softmax(-1)[range(len(row.ids) - row.start), row.ids[row.start :]]
        parts.append(advantage * logp_T if ratio == "token" else (advantage * logp_T.mean())[None])
    (-torch.cat(parts).mean()).backward()
    wanted = torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None])
    seen: list[torch.Tensor] = []

    class Watching(Trainer):
        def update(self, metrics: Any) -> Any:
            seen.append(torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None]))
            return super().update(metrics)

    for p in lm.parameters():
        p.grad = None
    trainer = Watching(lm, [torch.optim.SGD(lm.parameters(), lr=0.0)], 1e9)
    metrics = update_reflector(trainer, rollouts, drawn, None, 1)
    assert len(drawn.advantages_R.unique()) > 2 and torch.allclose(seen[0], wanted, atol=1e-6)
    assert metrics["reflection_approx_kl"] == pytest.approx(0, abs=1e-6) and metrics["reflection_clip_fraction"] == 0


LEARNERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "return, mean": ({"updates": 30}, {}),
    "return, critic, a ratio per reflection": (
        {"baseline": "critic", "critic_warmup": 1, "updates": 40}, {"ratio": "reflection", "lr": 5e-3}
    ),
    "REINFORCE, KL, entropy": (
        {"algorithm": "reinforce", "episodes": 128, "updates": 40},
        {"kl_coef": 0.01, "entropy_coef": 0.03, "lr": 5e-3},
    ),
    "choice": ({}, {"signal": "choice"}),
    "return, group": ({"baseline": "dr-grpo", "group": 4, "refills": 1, "updates": 40}, {"lr": 5e-3}),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNERS)
def test_the_reflector_learns_to_say_what_wins(pair: Pair, name: str) -> None:
    """Only the reflection tells the policy the way, and at first it names either one.

    How far a seed comes differs from machine to machine, by rounding: some learners stay a while where they name the
    right way at one colour only. Five seeds were tried of most, and ended between 0.5 and 1.
    """
    rl, reflecting = LEARNERS[name]
    log = train(*pair(), replace(RL, **rl), replace(SETTINGS, **reflecting))
    learned = sum(line["success"] for line in log[-6:-1]) / 5
    assert log[0]["success"] < 0.35 and learned > 0.4
    assert {"reflection_length", "distinct_reflections", "reflection_entropy", "reflection_grad_norm"} <= log[-2].keys()
    assert ("reflection_kl" in log[2]) == ("kl_coef" in reflecting)
    assert ("reflection_clip_fraction" in log[2]) == (rl.get("algorithm") != "reinforce")


def test_a_kl_penalty_holds_it_back(pair: Pair) -> None:
    free, held = (train(*pair(), replace(RL, updates=6), settings=replace(SETTINGS, kl_coef=c)) for c in (1e-6, 30.0))
    assert held[-2]["reflection_kl"] < 0.2 * free[-2]["reflection_kl"]


@pytest.mark.parametrize("alternate", [0, 2])
def test_both_learn_together_or_in_turn(pair: Pair, alternate: int) -> None:
    policy, reflector = pair(Policy)
    before = {name: weights_of(player.lm) for name, player in (("policy", policy), ("reflector", reflector))}
    config, moved = replace(RL, updates=5, eval_every=5, episodes=8), list[tuple[bool, bool]]()

    def changed(name: str, player: Any) -> bool:
        now = weights_of(player.lm)
        found = any(not torch.equal(tensor, now[key]) for key, tensor in before[name].items())
        before[name] = now
        return found

    def note(line: dict[str, Any]) -> None:
        moved.append((changed("reflector", reflector), changed("policy", policy)))
        assert ("policy_loss" in line) == (moved[-1][1]) or len(moved) > 5

    train(policy, reflector, config, replace(SETTINGS, alternate=alternate), note, both=True)
    turns = [(True, False)] * 2 + [(False, True)] * 2 + [(True, False)] if alternate else [(True, True)] * 5
    assert moved[:5] == turns


def test_two_adapters_on_one_backbone_learn_together(pair: Pair) -> None:
    policy, reflector = pair(Policy, lora_rank=2)
    backbone = {name: p.detach().clone() for name, p in policy.lm.model.named_parameters() if "lora" not in name}
    config = replace(RL, updates=2, episodes=8, kl_coef=0.1)
    log = train(policy, reflector, config, replace(SETTINGS, kl_coef=0.1), both=True)
    after = dict(policy.lm.model.named_parameters())
    assert all(torch.equal(tensor, after[name]) for name, tensor in backbone.items())
    assert log[1]["kl"] > 0 and log[1]["reflection_kl"] > 0


@pytest.mark.parametrize("both", [False, True])
def test_a_killed_training_ends_with_the_same_weights(pair: Pair, tmp_path: Path, both: bool) -> None:
    config = replace(RL, updates=5, episodes=8, eval_every=2, baseline="critic", kl_coef=0.1 if both else 0.0)
    settings, kind = replace(SETTINGS, kl_coef=0.01, alternate=1), Policy if both else Obedient
    whole = pair(kind)
    lines = train(*whole, config, settings, both=both)
    log: Metrics = []

    def until(line: dict[str, Any]) -> None:
        if line["step"] == 3 and len(log) == 3:
            raise KeyboardInterrupt
        log.append(line)

    with pytest.raises(KeyboardInterrupt):
        train(*pair(kind), config, settings, until, state_folder=tmp_path / "state", both=both)
    resumed = pair(kind)
    again = train(*resumed, config, settings, state_folder=tmp_path / "state", both=both)
    assert log == lines[:3] and again == lines[2:]
    for one, other in zip(whole, resumed, strict=True):
        theirs = weights_of(other.lm)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in weights_of(one.lm).items())


def test_the_better_action_is_that_of_the_state(pair: Pair) -> None:
    from reflectrl.learn.steps import flatten
    from reflectrl.methods.shared.reflection_rollouts import better_actions, choice_gains

    policy, reflector = pair()
    jobs = [Job(task, i) for i in range(4) for task in Signs().tasks("train")]
    episodes = list(rollout(jobs, Signs, policy, SampledReflector(reflector, 1.0)))
    played = [step for episode in episodes for step in episode.steps]
    won_N = torch.tensor([step.reward for step in played])
    best = better_actions(played, won_N)
    assert {seen: ("left", "right")[action] for seen, action in best.items()} == {
        seen: "left" if "red" in seen.text else "right" for seen in best
    }
    gains = choice_gains(policy, played, flatten(policy, episodes, 1.0), won_N)
    told = [n for n, step in enumerate(played) if any(way in (step.reflection or "") for way in WAYS)]
    known = [n for n in told if played[n].observation in best]
    right = [
        ("left" if "red" in played[n].observation.text else "right") in (played[n].reflection or "") for n in known
    ]
    assert any(right) and not all(right) and [float(gains[n]) > 0 for n in known] == right
    assert not choice_gains(policy, played, flatten(policy, episodes, 1.0), -won_N.abs()).any()
    assert len(observations()) == 4
