"""The settings of the reflector's training: the section [reflecting] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.config.rules import Count, Natural, NonNegative, Positive, Range

if TYPE_CHECKING:
    from reflectrl.config import Recipe


@dataclass(frozen=True)
class ReflectingConfig:
    """Training of the reflector after SFT, in the arms "reflector-rl", "both-rl" and "reflector-rejection"
    ([reflecting.md](reflecting.md)). Episodes, advantages, PPO's clip, the critic and evaluation stand in [rl].
    """

    signal: Literal["return", "choice"] = "return"
    """What a reflection is credited with: what the episode earned from there on, or how much more probable it made the
    action that turned out best in its state."""
    ratio: Literal["token", "reflection"] = "token"
    """Whose probability ratio PPO clips: that of each token, or the geometric mean over the tokens of a reflection."""
    temperature: Positive = 1.0
    """At which reflections are drawn while the reflector learns. Evaluation reflects at
    `play.reflection_temperature`."""
    policy_temperature: NonNegative = 1.0
    """At which a policy plays that stays as it is; 0 takes its most probable action. One that learns plays at
    `rl.temperature`."""
    lr: Positive = 1e-4
    """Learning rate of AdamW for the reflector."""
    kl_coef: NonNegative = 0.02
    """Weight of the KL divergence from the reflector before RL, per token and over the whole vocabulary. With 0, no
    reference model is kept in memory."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus, per token."""
    alternate: Natural = 0
    """Of both-rl: updates for which only the reflector learns, then as many for the policy, and so on; 0 lets both
    learn from every batch."""
    samples: Annotated[int, Range(least=2)] = 6
    """Of reflector-rejection: reflections drawn for a state."""
    states: Count = 200
    """Of reflector-rejection: states per round."""
    continuations: Count = 2
    """Of reflector-rejection: how often each action of a state is tried, by playing on from there to the end."""
    judge: Literal["value", "choice"] = "value"
    """Of reflector-rejection: what makes a reflection better: what the policy may expect to earn after it, or how
    probable it makes the action whose continuations won most."""
    rounds: Count = 5
    """Of reflector-rejection: rounds of drawing, judging and imitating; each plays `rl.episodes` episodes to find
    states."""
    steps: Count = 40
    """Of reflector-rejection: optimiser steps per round, on the reflections that were kept."""
    batch_size: Count = 32
    """Of reflector-rejection: reflections per optimiser step."""


def reflecting_settings(recipe: Recipe) -> ReflectingConfig:
    """The section [reflecting] of a recipe."""
    found: ReflectingConfig = recipe.sections["reflecting"]
    return found
