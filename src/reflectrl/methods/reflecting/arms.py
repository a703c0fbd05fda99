"""Arms that train a reflector in a run, and the artifacts that they are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reflectrl.core.types import UserError, named_seed
from reflectrl.methods.reflecting.config import reflecting_settings
from reflectrl.runs.arms import Arm, Model, policy, reflector
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Input, Kind, Plan, Source, artifact

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe, RLConfig
    from reflectrl.models.lm import LanguageModel

WRITER = "-reflector"
"""Suffix that turns the name of a jointly trained pair into the name of its reflector's checkpoint."""
SETTINGS = (*PLAYED, "rl", "reflecting")


@artifact("reflecting", "rl", CHECKPOINT, settings=SETTINGS)
def reflector_rl(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train a reflector by reinforcement learning: it learns from what the policy does after its reflections."""
    from reflectrl.methods.reflecting.online import train_reflector

    config = frozen_policy_settings(build.recipe, build.recipe.rl.updates)
    _, reflector_lm = _train(build, reflector, policy, config, partial(train_reflector, both=False))
    _save(build, reflector_lm)


@artifact("reflecting", "rl", CHECKPOINT, settings=SETTINGS)
def reflector_rejection(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train a reflector by rejection sampling: it imitates the best of its own reflections."""
    from reflectrl.core.envs import make
    from reflectrl.methods.reflecting.rejection import train_rejection

    recipe = build.recipe
    config = frozen_policy_settings(recipe, reflecting_settings(recipe).rounds)
    train = partial(train_rejection, make_env=partial(make, recipe.env), batch=recipe.eval.batch)
    _, reflector_lm = _train(build, reflector, policy, config, train)
    _save(build, reflector_lm)


@artifact("reflecting", "rl", CHECKPOINT, CHECKPOINT.replace("{name}", "{name}" + WRITER), settings=SETTINGS)
def both_rl(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train reflector and policy together by reinforcement learning. They are two checkpoints."""
    from reflectrl.learn.checkpoint import write_folder
    from reflectrl.methods.reflecting.online import train_reflector

    config = without_replay(build.recipe.rl)
    policy_lm, reflector_lm = _train(build, reflector, policy, config, partial(train_reflector, both=True), both=True)
    name = build.name + WRITER  # it comes first: once the policy's checkpoint exists, both do
    write_folder(build.out.with_name(name), partial(reflector_lm.save, artifact=name, seed=build.seed))
    _save(build, policy_lm)


def _train(
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


def _save(build: Build, lm: LanguageModel) -> None:
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


def both_rl_reflector(plan: Plan) -> Input:
    """Plan the reflector of a pair that is trained together."""
    return trained_pair(both_rl, "both-rl", plan).part(1)


ARMS = {
    "reflector-rl": Arm(
        "SFT, then RL of the reflector; the policy stays", policy, partial(trained_pair, reflector_rl, "reflector-rl")
    ),
    "both-rl": Arm("SFT, then RL of both players", partial(trained_pair, both_rl, "both-rl"), both_rl_reflector),
    "reflector-rejection": Arm(
        "SFT, then the reflector imitates its best reflections",
        policy,
        partial(trained_pair, reflector_rejection, "reflector-rejection"),
    ),
}
