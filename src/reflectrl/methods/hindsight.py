"""Reflection in hindsight: texts about its own finished episodes teach a policy, and nothing is written at play."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from reflectrl.core.types import UserError, named_seed
from reflectrl.methods.hints.config import HindsightConfig, hindsight_settings
from reflectrl.runs.arms import Arm, policy
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Kind, Plan, Source, artifact


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl", "hindsight"))
def taught_in_hindsight(build: Build, *, policy: Source, reward: bool) -> None:
    """Train a policy on texts about its own episodes.

    Args:
        policy: the initial policy, which has learned to read reflections.
        reward: learn from reward as well; False learns from the texts alone.
    """
    _train(build, policy, texts=True, reward=reward)


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl"))
def taught_by_reward(build: Build, *, policy: Source) -> None:
    """Train the same policy by reward alone, as the control: the same start, seed and optimiser."""
    _train(build, policy, texts=False, reward=True)


def _train(build: Build, policy: Source, texts: bool, reward: bool) -> None:
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import train_online
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.hints.learn import HindsightRollouts
    from reflectrl.runs.players import load_pair, make_policy
    from reflectrl.runs.training import metrics_log

    recipe, seed = build.recipe, build.seed
    lm, _ = load_pair(recipe, seed, policy, None)
    assert lm is not None
    acting, config = make_policy(recipe, lm), replace(recipe.rl, replay_log=0)
    # The arms share a seed, so that the texts are the only difference between them.
    rl_seed = named_seed(seed, "hindsight")
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        rollouts = EpisodeRollouts(acting, None, envs, config, rl_seed)
        if texts:
            rollouts = HindsightRollouts(acting, envs, config, hindsight_settings(recipe), rl_seed, reward)
        train_online(rollouts, config, rl_seed, note, build.learner)
    write_folder(build.out, partial(lm.save, artifact=build.name, seed=seed))
    drop_state(build.learner)


def planned(kind: Kind, name: str, plan: Plan, **how: Any) -> Artifact:
    """Plan the SFT policy of a pair, and its training.

    Raises:
        UserError: `rl.reverse` is set. Episodes that begin part-way into others cannot be played again from the start.
    """
    if plan.recipe.rl.reverse:
        raise UserError(f"arm {name!r} plays whole episodes again to write about them; set rl.reverse to 0")
    return kind(plan, name, policy=policy(plan), **how)


ARMS = {
    "hindsight": Arm(
        "SFT + RL without a reflector; texts in hindsight teach as well",
        partial(planned, taught_in_hindsight, "hindsight", reward=True),
    ),
    "hindsight-only": Arm(
        "SFT, then texts in hindsight instead of RL, without a reflector",
        partial(planned, taught_in_hindsight, "hindsight-only", reward=False),
    ),
    "no-hindsight": Arm(
        "SFT + RL from the same policy as hindsight, without any texts",
        partial(planned, taught_by_reward, "no-hindsight"),
    ),
}
SECTIONS = {"hindsight": HindsightConfig}
