"""The settings of learning through critics: the section [values] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.config.rules import Count, Positive, Range

if TYPE_CHECKING:
    from reflectrl.config import Recipe


@dataclass(frozen=True)
class ValuesConfig:
    """Online RL of the arms "archer" and "linvit", whose critics learn from step to step. How they play and are
    evaluated, gamma, learning rates and critic_warmup stand in [rl].
    """

    critic_steps: Count = 100
    """Optimiser steps of the critic per update."""
    critic_batch: Count = 256
    """Transitions per optimiser step of the critic, drawn from the buffer."""
    target_rate: Annotated[float, Range(above=0, most=1)] = 0.02
    """How far the target network, a slow copy of the critic, moves towards it per step (tau)."""
    buffer: Count = 50_000
    """Most transitions that are kept; the oldest go first."""
    actor_steps: Count = 8
    """Of archer: optimiser steps of the policy per update."""
    actor_batch: Count = 128
    """Of archer: states per optimiser step of the policy, drawn from the buffer."""
    actor_actions: Literal["all", "sampled"] = "all"
    """Of archer: whether a state's gradient comes from all of its actions, each with its probability, or from one that
    the policy draws there (REINFORCE, as in the source): the same in expectation, with more variance."""
    kl_lambda: Positive = 0.05
    """Of linvit: what straying from the language model costs, in reward per nat. Small values follow the critic, large
    ones the model."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if self.buffer < self.critic_batch:
            return f"'buffer' is {self.buffer}; it must be at least 'critic_batch' ({self.critic_batch})"
        return None


def values_settings(recipe: Recipe) -> ValuesConfig:
    """The section [values] of a recipe."""
    found: ValuesConfig = recipe.sections["values"]
    return found
