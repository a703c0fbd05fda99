"""Settings of learning with critics: the section [values] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.core.config.rules import Count, Positive, Range

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe, RLConfig


@dataclass(frozen=True)
class ValuesConfig:
    """Online RL of the arms "archer" and "linvit", whose critics learn by temporal differences. Settings of play and
    evaluation, gamma, learning rates and critic_warmup stand in [rl].
    """

    critic_steps: Count = 100
    """Optimiser steps of the critic per update."""
    critic_batch: Count = 256
    """Transitions per optimiser step of the critic, drawn from the buffer."""
    target_rate: Annotated[float, Range(above=0, most=1)] = 0.02
    """Update rate per step of the target network, a slow copy of the critic (tau)."""
    buffer: Count = 50_000
    """Size of the replay buffer in transitions. The oldest are dropped first."""
    actor_steps: Count = 8
    """Optimiser steps of archer's policy per update."""
    actor_batch: Count = 128
    """States per optimiser step of archer's policy, drawn from the buffer."""
    actor_actions: Literal["all", "sampled"] = "all"
    """Actions in archer's policy gradient. "all" sums over a state's actions, weighted by probability; "sampled" draws
    one action per state (REINFORCE, as in the source): the same in expectation, with more variance."""
    kl_lambda: Positive = 0.05
    """Cost of linvit's divergence from the language model, in reward per nat. Small values follow the critic, large
    values the model."""

    def problem(self) -> str | None:
        """Return a one-line error if two keys contradict each other, else None."""
        if self.buffer < self.critic_batch:
            return f"'buffer' is {self.buffer}; it must be at least 'critic_batch' ({self.critic_batch})"
        return None


def values_settings(recipe: Recipe) -> ValuesConfig:
    """Return the section [values] of a recipe."""
    found: ValuesConfig = recipe.sections["values"]
    return found


def rl_settings(recipe: Recipe) -> RLConfig:
    """Return the recipe's [rl] without the settings that only learning from returns needs."""
    return replace(recipe.rl, baseline="none", refills=0, replay=0, replay_episodes=0, replay_log=0)
