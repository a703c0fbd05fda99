"""Both methods learn by reward, and a killed training goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.players import AnalystPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Sampling
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.trainer import weights_of
from reflectrl.learn.validation import success_rate
from reflectrl.methods.archer import train_archer
from reflectrl.methods.linvit import train_linvit
from reflectrl.methods.shared.critic import make_critic
from reflectrl.methods.shared.guided import ValueGuidedPolicy
from reflectrl.methods.shared.values import ValuesConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy

Tiny = Callable[..., LanguageModel]
Metrics = list[dict[str, Any]]

RL = RLConfig(
    updates=8, episodes=12, lr=1e-2, eval_every=4, eval_episodes=2, replay=0, replay_episodes=0, curriculum="none",
    baseline="none", kl_coef=0.0, critic_lr=3e-3, gamma=0.98,
)  # fmt: skip
VALUES = ValuesConfig(critic_steps=40, critic_batch=32, target_rate=0.1, actor_steps=4, actor_batch=32, kl_lambda=0.1)
TRAIN: dict[str, Any] = {"archer": train_archer, "linvit": train_linvit}


def player(method: str, lm: LanguageModel, values: ValuesConfig = VALUES) -> Policy:
    policy = Policy(lm)
    return ValueGuidedPolicy(policy, make_critic(lm.hidden_size, 0), values.kl_lambda) if method == "linvit" else policy


def train(method: str, policy: Policy, make_env: Any, config: RLConfig = RL, values: ValuesConfig = VALUES,
          reflector: Any = None, log: Any = None, **more: Any) -> Metrics:  # fmt: skip
    found: Metrics = []
    rollouts = EpisodeRollouts(policy, reflector, make_env, replace(config, kl_coef=0.0), 0)
    TRAIN[method](rollouts, config, values, 0, log or found.append, **more)
    return found


def success(policy: Policy, make_env: Any, temperature: float = 1.0) -> float:
    jobs = [Job(task, i) for i in range(10) for split in ("train", "test") for task in make_env().tasks(split)]
    return success_rate(list(rollout(jobs, make_env, policy.with_sampling(Sampling(temperature)))))


@pytest.mark.parametrize("actions", ["tried", "sampled", "all"])
def test_archer_finds_the_actions_that_pay(tiny: Tiny, make_rooms: Any, actions: Any) -> None:
    policy = player("archer", tiny())
    before, values = success(policy, make_rooms), replace(VALUES, actor_actions=actions)
    log = train("archer", policy, make_rooms, values=values)
    assert before < 0.4 and success(policy, make_rooms) > 0.8
    assert [line["step"] for line in log] == [*range(9)] and log[7]["grad_norm"] > 0
    assert {"critic_loss", "value_loss", "policy_loss", "entropy", "kl", "success", "return"} <= log[3].keys()


def test_an_adapter_learns_as_well_and_its_backbone_does_not(tiny: Tiny, make_rooms: Any) -> None:
    """One of rank 2 on a tiny model of random weights cannot become sure; it learns what is best."""
    policy = player("archer", tiny(lora_rank=2))
    backbone = {name: p.detach().clone() for name, p in policy.lm.model.named_parameters() if "lora" not in name}
    assert success(policy, make_rooms, 0.0) == 0.0
    train("archer", policy, make_rooms)
    assert success(policy, make_rooms, 0.0) == 1.0
    after = dict(policy.lm.model.named_parameters())
    assert all(torch.equal(tensor, after[name]) for name, tensor in backbone.items())


def test_linvit_finds_them_without_touching_the_model(tiny: Tiny, make_rooms: Any) -> None:
    policy = player("linvit", tiny())
    before, weights = success(policy, make_rooms), policy.lm.weights()
    train("linvit", policy, make_rooms)
    policy.clear_cache()
    assert before < 0.4 and success(policy, make_rooms) > 0.8 and success(policy, make_rooms, 0.0) == 1.0
    assert success(Policy(policy.lm), make_rooms) == before
    assert all(torch.equal(tensor, policy.lm.weights()[name]) for name, tensor in weights.items())


def test_the_dearer_it_is_to_stray_from_the_model_the_less_it_does(tiny: Tiny, make_rooms: Any) -> None:
    rates = []
    for kl_lambda in (0.1, 100.0):
        values = replace(VALUES, kl_lambda=kl_lambda)
        policy = player("linvit", tiny(), values)
        before = success(policy, make_rooms)
        train("linvit", policy, make_rooms, values=values)
        policy.clear_cache()
        rates.append(success(policy, make_rooms))
    assert rates[0] > 0.8 and rates[1] == pytest.approx(before, abs=0.05)


def test_a_kl_penalty_holds_archer_back(tiny: Tiny, make_rooms: Any) -> None:
    free, held = (train("archer", player("archer", tiny()), make_rooms, replace(RL, kl_coef=c)) for c in (0.0, 30.0))
    assert held[7]["kl"] < 0.1 * free[7]["kl"] and held[0]["success"] == free[0]["success"]


@pytest.mark.parametrize("actions", ["tried", "all"])
def test_nothing_is_learned_about_actions_that_nobody_tried_unless_all_are_asked_for(
    tiny: Tiny, make_rooms: Any, actions: Any
) -> None:
    """One episode tries one action in each of its states, so there is nothing to compare it with."""
    config = replace(RL, updates=1, episodes=1, eval_every=1)
    log = train("archer", player("archer", tiny()), make_rooms, config, replace(VALUES, actor_actions=actions))
    assert log[0]["critic_loss"] > 0
    assert (log[0]["grad_norm"] < 1e-6) == (actions == "tried")


@pytest.mark.parametrize("method", list(TRAIN))
def test_the_reflector_is_part_of_the_environment(tiny: Tiny, make_rooms: Any, method: str) -> None:
    log = train(method, player(method, tiny()), make_rooms, replace(RL, updates=2), reflector=AnalystPlayer())
    assert [line["step"] for line in log] == [0, 1, 2]


def test_while_the_critic_warms_up_the_policy_stays(tiny: Tiny, make_rooms: Any) -> None:
    policy, config = player("archer", tiny()), replace(RL, updates=2, critic_warmup=2)
    before = policy.lm.weights()
    log = train("archer", policy, make_rooms, config)
    assert all(torch.equal(tensor, policy.lm.weights()[name]) for name, tensor in before.items())
    assert "policy_loss" not in log[0] and log[1]["critic_loss"] > 0


@pytest.mark.parametrize("method", list(TRAIN))
def test_a_killed_training_ends_with_the_same_weights(tiny: Tiny, make_rooms: Any, tmp_path: Path, method: str) -> None:
    config, values = replace(RL, updates=5, eval_every=2, kl_coef=0.1), replace(VALUES, critic_steps=5, buffer=40)
    whole = player(method, tiny())
    lines = train(method, whole, make_rooms, config, values)
    log: Metrics = []

    def until(line: dict[str, Any]) -> None:
        if line["step"] == 3 and len(log) == 3:
            raise KeyboardInterrupt
        log.append(line)

    with pytest.raises(KeyboardInterrupt):
        train(method, player(method, tiny()), make_rooms, config, values, log=until, state_folder=tmp_path / "state")
    resumed = player(method, tiny())
    again = train(method, resumed, make_rooms, config, values, state_folder=tmp_path / "state")
    assert log == lines[:3] and again == lines[2:]
    one, other = (weights_of(policy.lm) for policy in (whole, resumed))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    if isinstance(whole, ValueGuidedPolicy) and isinstance(resumed, ValueGuidedPolicy):
        one, other = (weights_of(policy.critic) for policy in (whole, resumed))
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
