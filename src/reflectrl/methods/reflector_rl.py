"""Online RL of a reflector, whose policy stays or learns as well."""

from __future__ import annotations

from functools import partial

from reflectrl.methods.reflecting.config import ReflectingConfig
from reflectrl.methods.reflecting.pair import (
    SETTINGS,
    WRITER,
    frozen_policy_settings,
    save,
    train_pair,
    trained_pair,
    without_replay,
)
from reflectrl.runs.arms import Arm, policy
from reflectrl.runs.artifact import CHECKPOINT, Build, Input, Plan, Source, artifact


@artifact("reflecting", "rl", CHECKPOINT, settings=SETTINGS)
def reflector_rl(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train a reflector by reinforcement learning: it learns from what the policy does after its reflections."""
    from reflectrl.methods.reflecting.online import train_reflector

    config = frozen_policy_settings(build.recipe, build.recipe.rl.updates)
    _, reflector_lm = train_pair(build, reflector, policy, config, partial(train_reflector, both=False))
    save(build, reflector_lm)


@artifact("reflecting", "rl", CHECKPOINT, CHECKPOINT.replace("{name}", "{name}" + WRITER), settings=SETTINGS)
def both_rl(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train reflector and policy together by reinforcement learning. They are two checkpoints."""
    from reflectrl.learn.checkpoint import write_folder
    from reflectrl.methods.reflecting.online import train_reflector

    config = without_replay(build.recipe.rl)
    policy_lm, reflector_lm = train_pair(
        build, reflector, policy, config, partial(train_reflector, both=True), both=True
    )
    name = build.name + WRITER  # it comes first: once the policy's checkpoint exists, both do
    write_folder(build.out.with_name(name), partial(reflector_lm.save, artifact=name, seed=build.seed))
    save(build, policy_lm)


def both_rl_reflector(plan: Plan) -> Input:
    """Plan the reflector of a pair that is trained together."""
    return trained_pair(both_rl, "both-rl", plan).part(1)


ARMS = {
    "reflector-rl": Arm(
        "SFT, then RL of the reflector; the policy stays", policy, partial(trained_pair, reflector_rl, "reflector-rl")
    ),
    "both-rl": Arm("SFT, then RL of both players", partial(trained_pair, both_rl, "both-rl"), both_rl_reflector),
}
SECTIONS = {"reflecting": ReflectingConfig}
