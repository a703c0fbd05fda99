"""Builders of learning with critics: from a trained pair to a policy, or to a policy with a critic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from reflectrl.core.config import Recipe, RLConfig
from reflectrl.core.envs import make
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.types import named_seed
from reflectrl.learn.checkpoint import drop_state, write_folder
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.methods.values.archer import train_archer
from reflectrl.methods.values.arms import MODELS
from reflectrl.methods.values.config import values_settings
from reflectrl.methods.values.critic import make_critic
from reflectrl.methods.values.guided import ValueGuidedPolicy
from reflectrl.methods.values.linvit import train_linvit
from reflectrl.runs.arms import chosen
from reflectrl.runs.artifacts import Artifact
from reflectrl.runs.folder import Context
from reflectrl.runs.players import load_pair, make_policy, make_reflector
from reflectrl.runs.progress import Tick
from reflectrl.runs.training import metrics_log


def policy(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Train one policy of `MODELS`. LINVIT trains its critic only, which is saved in the policy's checkpoint."""
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    row, config, values = MODELS[name], settings_of(recipe), values_settings(recipe)
    policy_lm, reflector_lm = load_pair(recipe, run, seed, chosen([name])[name], row.start)
    playing = make_policy(recipe, policy_lm)
    reflector = make_reflector(recipe, reflector_lm) if reflector_lm is not None else None
    learner, rl_seed = run.learner(seed, name), named_seed(seed, name)
    if row.algorithm == "linvit":
        critic = make_critic(policy_lm.hidden_size, rl_seed).to(policy_lm.device)
        playing = ValueGuidedPolicy(playing, critic, values.kl_lambda)
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        metrics_log(context, artifact, name, config.updates, tick) as note,
    ):
        rollouts = EpisodeRollouts(playing, reflector, envs, replace(config, kl_coef=0.0), rl_seed)
        train = train_linvit if row.algorithm == "linvit" else train_archer
        train(rollouts, config, values, rl_seed, note, learner)
    if row.algorithm == "linvit":
        policy_lm.heads = {key: tensor.cpu() for key, tensor in critic.state_dict().items()}
    write_folder(run.checkpoint(seed, name), partial(policy_lm.save, artifact=name, seed=seed))
    drop_state(learner)


def settings_of(recipe: Recipe) -> RLConfig:
    """Return the recipe's [rl] without the settings that only learning from returns needs."""
    return replace(recipe.rl, baseline="none", refills=0, replay=0, replay_episodes=0, replay_log=0)
