"""Shared by the methods that train a reflector: settings [reflecting], initial pair, rollouts, checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.core.config.rules import Count, Natural, NonNegative, Positive, Range
from reflectrl.core.types import UserError, named_seed
from reflectrl.runs.arms import Model, policy, reflector
from reflectrl.runs.artifact import PLAYED, Artifact, Build, Kind, Plan, Source

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import Recipe, RLConfig
    from reflectrl.models.lm import LanguageModel

SETTINGS = (*PLAYED, "rl", "reflecting")
"""Recipe keys that the training depends on."""


@dataclass(frozen=True)
class ReflectingConfig:
    """Training of the reflector after SFT, in the arms "reflector-rl", "both-rl" and "reflector-rejection"
    ([reflecting.md](reflecting.md)). Settings of episodes, advantages, PPO's clip, critic and evaluation are in [rl].
    """

    signal: Literal["return", "choice"] = "return"
    """Credit of a reflection: "return" is the episode's reward-to-go; "choice" is the gain in log-probability of the
    action that turned out best in its state."""
    ratio: Literal["token", "reflection"] = "token"
    """Probability ratio that PPO clips: one per token, or one per reflection (the geometric mean over its tokens)."""
    temperature: Positive = 1.0
    """Sampling temperature of reflections during training. Evaluation uses `play.reflection_temperature`."""
    policy_temperature: NonNegative = 1.0
    """Sampling temperature of a policy that does not learn; 0 takes the most probable action. A policy that learns
    plays at `rl.temperature`."""
    lr: Positive = 1e-4
    """Learning rate of AdamW for the reflector."""
    kl_coef: NonNegative = 0.02
    """Weight of the KL divergence from the reflector before RL, per token and over the whole vocabulary. With 0, no
    reference model is kept in memory."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus, per token."""
    alternate: Natural = 0
    """Updates per phase of both-rl: the reflector learns in the first phase, the policy in the second, and so on. With
    0, both learn from every batch."""
    samples: Annotated[int, Range(least=2)] = 6
    """Reflections drawn per state in reflector-rejection."""
    states: Count = 200
    """States per round of reflector-rejection."""
    continuations: Count = 2
    """Number of times that reflector-rejection tries each action of a state, playing on to the end of the episode."""
    judge: Literal["value", "choice"] = "value"
    """Score of a reflection in reflector-rejection: "value" is the policy's expected return after reading it, "choice"
    the log-probability of the action whose continuations won most."""
    rounds: Count = 5
    """Rounds of reflector-rejection. Each plays `rl.episodes` episodes to find states, then draws, scores and imitates
    reflections."""
    steps: Count = 40
    """Optimiser steps per round of reflector-rejection, on the reflections that were kept."""
    batch_size: Count = 32
    """Reflections per optimiser step of reflector-rejection."""


def reflecting_settings(recipe: Recipe) -> ReflectingConfig:
    """Return the section [reflecting] of a recipe."""
    settings: ReflectingConfig = recipe.sections["reflecting"]
    return settings


def train_pair(
    build: Build, reflector: Source, policy: Source, config: RLConfig, train: Callable[..., None], both: bool = False
) -> tuple[LanguageModel, LanguageModel]:
    """Train a reflector, or `both` players, and return policy and reflector."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.methods.shared.reflection_rollouts import ReflectionRollouts
    from reflectrl.runs.players import load_pair, make_policy, make_reflector
    from reflectrl.runs.training import metrics_log

    recipe, settings = build.recipe, reflecting_settings(build.recipe)
    policy_lm, reflector_lm = load_pair(recipe, build.seed, policy, reflector)
    assert policy_lm is not None and reflector_lm is not None
    acting, speaking = make_policy(recipe, policy_lm), make_reflector(recipe, reflector_lm)
    rl_seed = named_seed(build.seed, build.name)
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        rollouts = ReflectionRollouts(acting, speaking, envs, config, settings, rl_seed, both)
        train(rollouts, config, settings, rl_seed, note, build.learner)
    return policy_lm, reflector_lm


def save(build: Build, lm: LanguageModel) -> None:
    """Write the checkpoint of an artifact, and drop the learner's state."""
    from reflectrl.learn.checkpoint import drop_state, write_folder

    write_folder(build.out, partial(lm.save, artifact=build.name, seed=build.seed))
    drop_state(build.learner)


def without_replay(config: RLConfig) -> RLConfig:
    """Return settings of [rl] without replay, since replayed reflections were written by other weights."""
    return replace(config, replay=0, replay_episodes=0, replay_log=0, self_imitation=False)


def frozen_policy_settings(recipe: Recipe, updates: int) -> RLConfig:
    """Return the recipe's [rl] for training a reflector beside a frozen policy.

    There is no KL penalty then, and the policy plays at `reflecting.policy_temperature`.

    Args:
        updates: number of updates, or of rounds of rejection sampling, by which a curriculum advances.
    """
    temperature = reflecting_settings(recipe).policy_temperature
    return replace(without_replay(recipe.rl), updates=updates, kl_coef=0.0, temperature=temperature)


def trained_pair(
    kind: Kind, name: str, plan: Plan, reflector: Model | None = reflector, policy: Model = policy
) -> Artifact:
    """Plan the initial pair and the training of its reflector, or of both players.

    Raises:
        UserError: no initial reflector is named, or `rl.reflect_probability` is 0, so there are no reflections.
    """
    if reflector is None:
        raise UserError(f"arm {name!r} trains a reflector but names none to start from; give it one")
    if not plan.recipe.rl.reflect_probability:
        raise UserError(f"rl.reflect_probability is 0; arm {name!r} learns from reflections, so set it above 0")
    return kind(plan, name, reflector=reflector(plan), policy=policy(plan))
