"""The settings of distilling: the section [distill] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reflectrl.config.rules import Count, NonNegative

if TYPE_CHECKING:
    from reflectrl.config import Recipe


@dataclass(frozen=True)
class DistillConfig:
    """Training of the arms "distilled" and "distilled-sft", which play without a reflector. Optimiser, learning rates
    and warm-up are those of [sft].
    """

    episodes: Count = 2
    """Episodes that the pair plays of each training task."""
    temperature: NonNegative = 1.0
    """At which it plays them and its probabilities are learned; 0 is greedy (one episode per task then says it all),
    and its probabilities are those of 1."""
    won_only: bool = False
    """Learn from the episodes that the pair won only."""
    target: Literal["soft", "chosen"] = "soft"
    """What is learned in each state: the pair's probability of every action, or the action that it took."""
    start: Literal["policy", "reflector"] = "policy"
    """Which of the pair the policy starts from. A reflector that was made from scratch knows best what stands in a
    state (adapters cannot start from it)."""
    steps: Count = 600
    """Optimiser steps."""
    batch_size: Count = 64
    """States per optimiser step."""
    eval_every: Count = 100
    """Optimiser steps between evaluations; the weights that win most validation tasks are kept."""
    eval_episodes: Count = 30
    """Validation tasks per evaluation, spread evenly over all of them."""


def distill_settings(recipe: Recipe) -> DistillConfig:
    """The section [distill] of a recipe."""
    found: DistillConfig = recipe.sections["distill"]
    return found
