"""Settings of the reflector's training: the section [reflecting] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.core.config.rules import Count, Natural, NonNegative, Positive, Range

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe


@dataclass(frozen=True)
class ReflectingConfig:
    """Training of the reflector after SFT, in the arms "reflector-rl", "both-rl" and "reflector-rejection"
    ([reflecting.md](reflecting.md)). Settings of episodes, advantages, PPO's clip, critic and evaluation stand in [rl].
    """

    signal: Literal["return", "choice"] = "return"
    """Credit of a reflection: "return" is the episode's reward-to-go; "choice" is the gain in log-probability of the
    action that turned out best in its state."""
    ratio: Literal["token", "reflection"] = "token"
    """Probability ratio that PPO clips: one per token, or one per reflection (the geometric mean over its tokens)."""
    temperature: Positive = 1.0
    """Sampling temperature of reflections during training. Evaluation uses `play.reflection_temperature`."""
    policy_temperature: NonNegative = 1.0
    """Sampling temperature of a policy that does not learn; 0 takes the most probable action. A policy that learns
    plays at `rl.temperature`."""
    lr: Positive = 1e-4
    """Learning rate of AdamW for the reflector."""
    kl_coef: NonNegative = 0.02
    """Weight of the KL divergence from the reflector before RL, per token and over the whole vocabulary. With 0, no
    reference model is kept in memory."""
    entropy_coef: NonNegative = 0.0
    """Weight of the entropy bonus, per token."""
    alternate: Natural = 0
    """Updates per phase of both-rl: the reflector learns in the first phase, the policy in the second, and so on. With
    0, both learn from every batch."""
    samples: Annotated[int, Range(least=2)] = 6
    """Reflections drawn per state in reflector-rejection."""
    states: Count = 200
    """States per round of reflector-rejection."""
    continuations: Count = 2
    """Number of times that reflector-rejection tries each action of a state, playing on to the end of the episode."""
    judge: Literal["value", "choice"] = "value"
    """Score of a reflection in reflector-rejection: "value" is the policy's expected return after reading it, "choice"
    the log-probability of the action whose continuations won most."""
    rounds: Count = 5
    """Rounds of reflector-rejection. Each plays `rl.episodes` episodes to find states, then draws, scores and imitates
    reflections."""
    steps: Count = 40
    """Optimiser steps per round of reflector-rejection, on the reflections that were kept."""
    batch_size: Count = 32
    """Reflections per optimiser step of reflector-rejection."""


def reflecting_settings(recipe: Recipe) -> ReflectingConfig:
    """Return the section [reflecting] of a recipe."""
    found: ReflectingConfig = recipe.sections["reflecting"]
    return found
