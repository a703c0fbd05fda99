"""Settings of learning from texts in hindsight: the section [hindsight] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reflectrl.core.config.rules import Count, Natural, NonNegative

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe


@dataclass(frozen=True)
class HindsightConfig:
    """Reflection in hindsight, in the arms "hindsight" and "hindsight-only" ([hindsight.md](hindsight.md)). Settings of
    episodes, advantages and evaluation stand in [rl].
    """

    text: Literal["analyst", "continuations", "outcome", "observation"] = "analyst"
    """Text that the teacher reads. "analyst": the environment's analysis of the state. "continuations": how often each
    action won when the policy tried it and played on, which needs no expert. "outcome": the action taken and how the
    episode ended. "observation": the action taken and the next observation."""
    gate: Literal["all", "agree", "lost"] = "agree"
    """Steps that learn from their text. "all": every step. "agree": steps in which the text moves the probability of
    the action taken in the direction of its advantage. "lost": steps of lost episodes."""
    coef: NonNegative = 1.0
    """Weight of the divergence between the policy with and without the text, in the loss."""
    continuations: Count = 2
    """Number of times that each action is tried in a state ("continuations")."""
    actions: Natural = 4
    """Largest number of actions tried in a state: the one taken, and the most probable ones. 0 tries all."""


def hindsight_settings(recipe: Recipe) -> HindsightConfig:
    """Return the section [hindsight] of a recipe."""
    settings: HindsightConfig = recipe.sections["hindsight"]
    return settings
