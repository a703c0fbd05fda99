"""Interface of the online RL loop (`online.py`): batches to learn from, and the source of batches.

The unit of learning is an action for agents (`rollouts.py`), and a token for text (the text wing).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from reflectrl.core import distributed
from reflectrl.core.config import RLConfig
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel

if TYPE_CHECKING:
    from reflectrl.learn.critic_batches import CriticBatches
    from reflectrl.learn.steps import Steps

Read = Callable[[], tuple[Tensor, Tensor]]
"""Function that computes log-probabilities (n, A) of all choices, and hidden states (n, D). Gradients flow."""


@dataclass(frozen=True)
class Slice:
    """Units of a minibatch that go through the model in one pass.

    Attributes:
        units: indices of the n units among the N units of the batch.
        read: the pass of the model that is trained.
        ref_logp_NA: log-probabilities (n, A) of all choices under the reference model; None without a KL term.
    """

    units: list[int]
    read: Read
    ref_logp_NA: Tensor | None = None


Minibatch = list[Slice]
"""Units of an optimiser step."""


@dataclass
class Batch:
    """Training batch of an update: N units, which are an agent's actions or a text's tokens.

    Attributes:
        minibatches: the optimiser steps of an epoch.
        labels_N: the choices made, as indices into the A choices.
        old_logp_N: log-probabilities of the choices when they were sampled; NaN if no model sampled them.
        advantages_N: advantages, not yet normalised.
        returns_N: targets of the critic: its lambda-returns, or the discounted rewards-to-go.
        values_N: the critic's predictions before this update; None without a critic.
        scale: smallest number by which normalisation divides the advantages, in reward units.
        won_N: 1 for units of an episode that was won, 0 for others; None if the episodes do not show how often the
            policy wins.
        steps: the agent's steps that are the units; None for text.
        auxiliary: further term of the loss, from the policy's log-probabilities (n, A) of n units and their indices.
        metrics: further metrics of the batch to report.
    """

    minibatches: list[Minibatch]
    labels_N: Tensor
    old_logp_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor | None = None
    scale: float = 0.0
    won_N: Tensor | None = None
    steps: Steps | None = None
    auxiliary: Callable[[Tensor, list[int]], Tensor] | None = None
    metrics: dict[str, float] = field(default_factory=dict)


class Rollouts(ABC):
    """Source of training batches for online RL. Subclasses implement at least `evaluate` and `collect`.

    A loop calls `collect`, then perhaps `replay`, and after the weights have changed `end_update`, once per update and
    in this order. `evaluate`, `state` and `load` are called between updates only (`Trainer.updates`).

    Attributes:
        lm: the model that plays (or writes) and learns.
        reference: frozen reference model of the KL penalty; None if `kl_coef` is 0.
        compares: True while batches need the reference's log-probabilities. The loop sets it.
        waiting: batches that the critic learns from later (`rl.critic_epochs`); None if it learns from each at once.
        team: processes that train together.
    """

    def __init__(self, lm: LanguageModel, config: RLConfig, seed: int) -> None:
        self.lm, self.config, self.seed, self.team = lm, config, seed, distributed.current()
        self.reference = lm.frozen_copy() if config.kl_coef else None
        self.compares = True
        self.waiting: CriticBatches | None = None

    def about(self) -> dict[str, object]:
        """Return fields to add to every line of metrics."""
        return {}

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Return scores on validation tasks, the most important first. Higher is better."""

    @abstractmethod
    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        """Play (or write) with the current weights, and return a batch to learn from."""

    def replay(self, critic: ValueHead | None) -> Batch | None:
        """Return a batch of past successes, to learn from after the fresh batch; None if there are none."""
        return None

    def end_update(self) -> dict[str, Any]:
        """Finish an update after the weights have changed. Return metrics of the collected batch."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state to save with the weights, as JSON values."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (what has no state has nothing to load)
        """Restore a state that `state` returned."""

    def close(self) -> None:  # noqa: B027
        """Release resources. Called when the training has ended and nothing will be played any more."""
