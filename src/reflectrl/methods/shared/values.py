"""Shared by archer and linvit, which learn action values: the settings [values], and the frame of their training."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from reflectrl.core.config.rules import Count, Positive, Range
from reflectrl.core.types import Sampling, named_seed
from reflectrl.runs.artifact import PLAYED, Build, Source

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from torch import Generator
    from torch.optim import Optimizer

    from reflectrl.core.config import Recipe, RLConfig
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.methods.shared.buffer import Drawn, TransitionBuffer
    from reflectrl.methods.shared.critic import UtteranceCritic
    from reflectrl.models.players import Policy

SETTINGS = (*PLAYED, "rl", "values")
"""Recipe keys that the training depends on."""


@dataclass(frozen=True)
class ValuesConfig:
    """Online RL of the arms "archer" and "linvit", whose critics learn by temporal differences. Settings of play and
    evaluation, gamma, learning rates and critic_warmup are in [rl].
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
    actor_actions: Literal["tried", "all", "sampled"] = "tried"
    """Actions in archer's policy gradient. "tried" sums over the actions that the buffer has seen in a state, weighted
    by probability; "all" sums over all listed actions, even where Q was never fitted; "sampled" draws one of these per
    state (REINFORCE, as in the source): the same as "all" in expectation, with more variance."""
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
    settings: ValuesConfig = recipe.sections["values"]
    return settings


def rl_settings(recipe: Recipe) -> RLConfig:
    """Return the recipe's [rl] without the settings that only learning from returns needs."""
    return replace(recipe.rl, baseline="none", refills=0, replay=0, replay_episodes=0, replay_log=0)


class CriticLearner(NamedTuple):
    """A critic, its target network and its optimiser.

    Attributes:
        critic: the critic.
        target: slow copy of the critic, which gives the values in TD targets.
        optimizer: optimiser of the critic's weights.
    """

    critic: UtteranceCritic
    target: UtteranceCritic
    optimizer: Optimizer

    @classmethod
    def of(cls, critic: UtteranceCritic, config: RLConfig) -> CriticLearner:
        """Make target and optimiser of a new critic."""
        import torch

        target = deepcopy(critic).requires_grad_(False)
        return cls(critic, target, torch.optim.AdamW(critic.parameters(), lr=config.critic_lr, fused=True))


def draw_transitions(
    rollouts: EpisodeRollouts, buffer: TransitionBuffer, values: ValuesConfig, update: int, generator: Generator
) -> Drawn:
    """Play the episodes of an update, add them to the buffer, and draw the transitions that the critic learns from."""
    from reflectrl.learn.steps import flatten

    rollouts.collect(update, None)
    played = rollouts.latest.played
    buffer.add(flatten(rollouts.policy, played, rollouts.config.gamma, rollouts.shaping), played)
    return buffer.draw(values.critic_steps * values.critic_batch, generator)


def train_by_values(
    build: Build,
    reflector: Source | None,
    policy: Source,
    train: Callable[..., None],
    prepare: Callable[[Policy, int], Policy] | None = None,
) -> None:
    """Load the players, train the policy on its episodes, and write its checkpoint.

    Args:
        reflector: the frozen reflector; None without one.
        train: the method's loop.
        prepare: turns the policy, given the seed of the training, into the player that the loop trains.
    """
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.runs.players import load_pair, make_policy, make_reflector
    from reflectrl.runs.training import metrics_log

    recipe, config = build.recipe, rl_settings(build.recipe)
    policy_lm, reflector_lm = load_pair(recipe, build.seed, policy, reflector)
    assert policy_lm is not None
    rl_seed = named_seed(build.seed, build.name)
    # Critics learn the values of the whole distribution, so nothing is left out of it while they do.
    acting = make_policy(recipe, policy_lm).with_sampling(Sampling())
    if prepare is not None:
        acting = prepare(acting, rl_seed)
    speaking = None
    if reflector_lm is not None:
        speaking = make_reflector(recipe, reflector_lm)
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        # kl_coef is 0 here, so that the rollouts keep no reference model: the loops have the frozen policy already.
        rollouts = EpisodeRollouts(acting, speaking, envs, replace(config, kl_coef=0.0), rl_seed)
        train(rollouts, config, values_settings(recipe), rl_seed, note, build.learner)
    write_folder(build.out, partial(policy_lm.save, artifact=build.name, seed=build.seed))
    drop_state(build.learner)
