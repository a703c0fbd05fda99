"""Frame of the methods that train a reflector: initial pair, rollouts, checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reflectrl.core.types import UserError, named_seed
from reflectrl.methods.reflecting.config import reflecting_settings
from reflectrl.runs.arms import Model, policy, reflector
from reflectrl.runs.artifact import PLAYED, Artifact, Build, Kind, Plan, Source

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe, RLConfig
    from reflectrl.models.lm import LanguageModel

WRITER = "-reflector"
"""Suffix that turns the name of a jointly trained pair into the name of its reflector's checkpoint."""
SETTINGS = (*PLAYED, "rl", "reflecting")


def train_pair(
    build: Build, reflector: Source, policy: Source, config: RLConfig, train: Callable[..., None], both: bool = False
) -> tuple[LanguageModel, LanguageModel]:
    """Train a reflector, or `both` players, and return policy and reflector."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.methods.reflecting.rollouts import ReflectionRollouts
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
    """Return the recipe's [rl] for the training of a reflector whose policy does not learn.

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
        raise UserError(f"arm {name!r} trains a reflector and names none to start from; give it one")
    if not plan.recipe.rl.reflect_probability:
        raise UserError(f"rl.reflect_probability is 0; arm {name!r} learns from reflections, so set it above 0")
    return kind(plan, name, reflector=reflector(plan), policy=policy(plan))
