"""Reflection in hindsight: texts that know what followed teach the policy, and nothing is written at play."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from reflectrl.core.types import UserError, named_seed
from reflectrl.methods.self_distillation.config import HindsightConfig, hindsight_settings
from reflectrl.runs import arms
from reflectrl.runs.arms import Arm
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl", "hindsight"))
def taught_in_hindsight(build: Build, *, policy: Source, reward: bool) -> None:
    """Train a policy by online RL in which texts in hindsight teach as well.

    Args:
        policy: the initial policy, which has learned to read reflections.
        reward: learn from reward as well; False learns from the texts alone.
    """
    train(build, policy, with_texts=True, reward=reward)


@artifact("hindsight", "rl", CHECKPOINT, settings=(*PLAYED, "rl"))
def taught_by_reward(build: Build, *, policy: Source) -> None:
    """Train the control: the same start, episodes and optimiser, without any texts."""
    train(build, policy, with_texts=False, reward=True)


def train(build: Build, source: Source, with_texts: bool, reward: bool) -> None:
    """Train a policy by online RL, with or without texts in hindsight."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import train_online
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.self_distillation.learn import HindsightRollouts
    from reflectrl.runs.players import load_pair, make_policy
    from reflectrl.runs.training import metrics_log

    recipe, seed = build.recipe, build.seed
    lm, _ = load_pair(recipe, seed, source, None)
    assert lm is not None
    policy, config = make_policy(recipe, lm), replace(recipe.rl, replay_log=0)
    # The arms share a seed, so that the texts are the only difference between them.
    rl_seed = named_seed(seed, "hindsight")
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        rollouts = EpisodeRollouts(policy, None, envs, config, rl_seed)
        if with_texts:
            rollouts = HindsightRollouts(policy, envs, config, hindsight_settings(recipe), rl_seed, reward)
        train_online(rollouts, config, rl_seed, note, build.learner)
    write_folder(build.out, lm.saver(artifact=build.name, seed=seed))
    drop_state(build.learner)


def planned(name: str, plan: Plan) -> Artifact:
    """Plan the initial policy of an arm and its training.

    Raises:
        UserError: `rl.reverse` is set. Episodes that begin part-way into others cannot be played again from the start.
    """
    if plan.recipe.rl.reverse:
        raise UserError(f"arm {name!r} plays whole episodes again to write about them; set rl.reverse to 0")
    policy = arms.policy(plan)
    if name == "no-hindsight":
        return taught_by_reward(plan, name, policy=policy)
    return taught_in_hindsight(plan, name, policy=policy, reward=name == "hindsight")


ARMS = {
    "hindsight": Arm("SFT + RL without a reflector; texts in hindsight teach as well", partial(planned, "hindsight")),
    "hindsight-only": Arm(
        "SFT, then texts in hindsight instead of RL, without a reflector", partial(planned, "hindsight-only")
    ),
    "no-hindsight": Arm(
        "SFT + RL from the same policy as hindsight, without any texts", partial(planned, "no-hindsight")
    ),
}
SECTIONS = {"hindsight": HindsightConfig}
