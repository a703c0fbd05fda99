"""Rejection sampling of a reflector: it imitates the best of its own reflections."""

from __future__ import annotations

from functools import partial

from reflectrl.methods.reflecting.config import reflecting_settings
from reflectrl.methods.reflecting.pair import (
    SETTINGS,
    frozen_policy_settings,
    save,
    train_pair,
    trained_pair,
)
from reflectrl.runs.arms import Arm, policy
from reflectrl.runs.artifact import CHECKPOINT, Build, Source, artifact


@artifact("reflecting", "rl", CHECKPOINT, settings=SETTINGS)
def reflector_rejection(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train a reflector by rejection sampling: it imitates the best of its own reflections."""
    from reflectrl.core.envs import make
    from reflectrl.methods.reflecting.rejection import train_rejection

    recipe = build.recipe
    config = frozen_policy_settings(recipe, reflecting_settings(recipe).rounds)
    train = partial(train_rejection, make_env=partial(make, recipe.env), batch=recipe.eval.batch)
    _, reflector_lm = train_pair(build, reflector, policy, config, train)
    save(build, reflector_lm)


ARMS = {
    "reflector-rejection": Arm(
        "SFT, then the reflector imitates its best reflections",
        policy,
        partial(trained_pair, reflector_rejection, "reflector-rejection"),
    ),
}
