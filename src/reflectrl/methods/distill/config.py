"""Settings of distillation: the section [distill] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reflectrl.core.config.rules import Count, NonNegative

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe


@dataclass(frozen=True)
class DistillConfig:
    """Training of the arms "distilled" and "distilled-sft", which play without a reflector. Optimiser, learning rates
    and warm-up come from [sft].
    """

    episodes: Count = 2
    """Episodes that the pair plays per training task."""
    temperature: NonNegative = 1.0
    """Sampling temperature of the pair, for its episodes and for the probabilities that are learned. With 0 the pair
    plays greedily, so one episode per task is enough, and its probabilities at temperature 1 are learned."""
    won_only: bool = False
    """Learn only from the episodes that the pair won."""
    target: Literal["soft", "chosen"] = "soft"
    """Target in each state: "soft" is the pair's probability of every action, "chosen" the action that it took."""
    start: Literal["policy", "reflector"] = "policy"
    """Initial weights of the policy: the pair's policy or its reflector. A reflector trained from scratch has learned
    best to read a state. With adapters, only "policy" is possible."""
    steps: Count = 600
    """Optimiser steps."""
    batch_size: Count = 64
    """States per optimiser step."""
    eval_every: Count = 100
    """Optimiser steps between evaluations. The weights that win most validation tasks are kept."""
    eval_episodes: Count = 30
    """Validation tasks per evaluation, spread evenly over all of them."""


def distill_settings(recipe: Recipe) -> DistillConfig:
    """Return the section [distill] of a recipe."""
    found: DistillConfig = recipe.sections["distill"]
    return found
