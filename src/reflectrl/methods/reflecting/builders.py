"""Builders of the reflector's training: from a trained pair to a reflector that helps the policy more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from reflectrl.core.config import Recipe, RLConfig
from reflectrl.core.envs import make
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.types import named_seed
from reflectrl.learn.checkpoint import drop_state, write_folder
from reflectrl.methods.reflecting.arms import MODELS, WRITER, Reflecting
from reflectrl.methods.reflecting.config import reflecting_settings
from reflectrl.methods.reflecting.online import train_reflector
from reflectrl.methods.reflecting.rollouts import ReflectionRollouts
from reflectrl.runs.arms import chosen
from reflectrl.runs.artifacts import Artifact
from reflectrl.runs.folder import Context
from reflectrl.runs.players import load_pair, make_policy, make_reflector
from reflectrl.runs.progress import Tick
from reflectrl.runs.training import metrics_log

Train = Callable[..., None]


def rl(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Train a reflector, or a pair, by reinforcement learning."""
    row = MODELS[artifact.name]
    _train(context, artifact, tick, context.recipe.rl.updates, partial(train_reflector, both=row.trains == "both"))


def rejection(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Train a reflector by rejection sampling: it imitates the best of its own reflections."""
    from reflectrl.methods.reflecting.rejection import train_rejection

    train = partial(train_rejection, make_env=partial(make, context.recipe.env), batch=context.recipe.eval.batch)
    _train(context, artifact, tick, reflecting_settings(context.recipe).rounds, train)


def _train(context: Context, artifact: Artifact, tick: Tick, last: int, train: Train) -> None:
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    row = MODELS[name]
    config, settings = settings_of(recipe, row), reflecting_settings(recipe)
    start = replace(chosen([name])[name], policy=row.policy, reflector=row.reflector)
    policy_lm, reflector_lm = load_pair(recipe, run, seed, start, row.policy)
    assert reflector_lm is not None
    policy, speaker = make_policy(recipe, policy_lm), make_reflector(recipe, reflector_lm)
    learner, rl_seed = run.learner(seed, name), named_seed(seed, name)
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        metrics_log(context, artifact, name, last, tick) as note,
    ):
        rollouts = ReflectionRollouts(policy, speaker, envs, config, settings, rl_seed, row.trains == "both")
        train(rollouts, config, settings, rl_seed, note, learner)
    if row.trains == "both":  # the reflector first: once the policy's checkpoint exists, both do
        saved = partial(reflector_lm.save, artifact=name + WRITER, seed=seed)
        write_folder(run.checkpoint(seed, name + WRITER), saved)
    lm = policy_lm if row.trains == "both" else reflector_lm
    write_folder(run.checkpoint(seed, name), partial(lm.save, artifact=name, seed=seed))
    drop_state(learner)


def settings_of(recipe: Recipe, row: Reflecting) -> RLConfig:
    """Return the recipe's [rl], adapted to the reflector's training.

    Replay is off, since replayed reflections were written by other weights. A policy that does not learn has no
    KL penalty and plays at `reflecting.policy_temperature`. With rejection sampling, rounds count as updates, by which
    a curriculum advances.
    """
    config = replace(recipe.rl, replay=0, replay_episodes=0, replay_log=0, self_imitation=False)
    if row.trains == "both":
        return config
    settings = reflecting_settings(recipe)
    updates = settings.rounds if row.method == "rejection" else config.updates
    return replace(config, updates=updates, kl_coef=0.0, temperature=settings.policy_temperature)
