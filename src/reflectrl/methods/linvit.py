"""LINVIT: a policy after SFT as a prior, guided by a value that is learned online."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from reflectrl.core.types import named_seed
from reflectrl.methods.values.config import rl_settings, values_settings
from reflectrl.runs.arms import Arm, plain, policy, reflector
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact


@artifact("values", "rl", CHECKPOINT, settings=(*PLAYED, "rl", "values"))
def linvit(build: Build, *, reflector: Source | None, policy: Source) -> None:
    """Train a critic that guides an unchanged policy (LINVIT). The policy's checkpoint contains the critic."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.values.critic import make_critic
    from reflectrl.methods.values.guided import ValueGuidedPolicy
    from reflectrl.methods.values.linvit import train_linvit
    from reflectrl.runs.players import load_pair, make_policy, make_reflector
    from reflectrl.runs.training import metrics_log

    recipe, config, values = build.recipe, rl_settings(build.recipe), values_settings(build.recipe)
    policy_lm, reflector_lm = load_pair(recipe, build.seed, policy, reflector)
    assert policy_lm is not None
    rl_seed = named_seed(build.seed, build.name)
    critic = make_critic(policy_lm.hidden_size, rl_seed).to(policy_lm.device)
    guided = ValueGuidedPolicy(make_policy(recipe, policy_lm), critic, values.kl_lambda)
    speaking = make_reflector(recipe, reflector_lm) if reflector_lm is not None else None
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        rollouts = EpisodeRollouts(guided, speaking, envs, replace(config, kl_coef=0.0), rl_seed)
        train_linvit(rollouts, config, values, rl_seed, note, build.learner)
    policy_lm.heads = {key: tensor.cpu() for key, tensor in critic.state_dict().items()}
    write_folder(build.out, partial(policy_lm.save, artifact=build.name, seed=build.seed))
    drop_state(build.learner)


def linvit_pair(plan: Plan) -> Artifact:
    """Plan LINVIT's policy, which reads reflections, with its critic."""
    return linvit(plan, "linvit", reflector=reflector(plan), policy=policy(plan))


def linvit_alone(plan: Plan) -> Artifact:
    """Plan LINVIT's policy without a reflector, with its critic."""
    return linvit(plan, "linvit-no-reflection", reflector=None, policy=plain(plan))


def guided(*given: Any) -> Any:
    """Return the player of a finished arm: the policy, guided by the critic of its checkpoint."""
    from reflectrl.methods.values.guided import value_guided  # brings torch, which a dry run does without

    return value_guided(*given)


GUIDED = partial(Arm, guide=guided, settings=("values.kl_lambda",))
ARMS = {
    "linvit": GUIDED("SFT as a prior, sampled by a learned value (LINVIT)", linvit_pair, reflector),
    "linvit-no-reflection": GUIDED("SFT as a prior for LINVIT, without a reflector", linvit_alone),
}
