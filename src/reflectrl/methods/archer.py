"""ArCHer: online RL of a policy by the advantages of a critic of single actions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from reflectrl.core.types import named_seed
from reflectrl.methods.values.config import ValuesConfig, rl_settings, values_settings
from reflectrl.runs.arms import Arm, plain, policy, reflector
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact


@artifact("values", "rl", CHECKPOINT, settings=(*PLAYED, "rl", "values"))
def archer(build: Build, *, reflector: Source | None, policy: Source) -> None:
    """Train a policy online by the advantages of a critic of single actions (ArCHer)."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.values.archer import train_archer
    from reflectrl.runs.players import load_pair, make_policy, make_reflector
    from reflectrl.runs.training import metrics_log

    recipe, config = build.recipe, rl_settings(build.recipe)
    policy_lm, reflector_lm = load_pair(recipe, build.seed, policy, reflector)
    assert policy_lm is not None
    acting = make_policy(recipe, policy_lm)
    speaking = make_reflector(recipe, reflector_lm) if reflector_lm is not None else None
    rl_seed = named_seed(build.seed, build.name)
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        rollouts = EpisodeRollouts(acting, speaking, envs, replace(config, kl_coef=0.0), rl_seed)
        train_archer(rollouts, config, values_settings(recipe), rl_seed, note, build.learner)
    write_folder(build.out, partial(policy_lm.save, artifact=build.name, seed=build.seed))
    drop_state(build.learner)


def archer_pair(plan: Plan) -> Artifact:
    """Plan ArCHer's policy, which reads reflections."""
    return archer(plan, "archer", reflector=reflector(plan), policy=policy(plan))


def archer_alone(plan: Plan) -> Artifact:
    """Plan ArCHer's policy without a reflector."""
    return archer(plan, "archer-no-reflection", reflector=None, policy=plain(plan))


ARMS = {
    "archer": Arm("SFT + ArCHer: RL by a critic of single actions", archer_pair, reflector),
    "archer-no-reflection": Arm("SFT + ArCHer without a reflector", archer_alone),
}
SECTIONS = {"values": ValuesConfig}
