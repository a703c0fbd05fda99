"""What the loop of online RL (`online.py`) asks for: batches to learn from, and where they come from.

An agent's unit is an action (`rollouts.py`); a writer's is a token (the wing of text).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from reflectrl.config import RLConfig
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel


@dataclass
class Batch:
    """N units (actions of an agent, tokens of a text) that an update learns from.

    Attributes:
        minibatches: a list of slices per optimiser step; a slice is what goes through the model together (whatever
            `read` takes), and which of the N units it holds.
        read: log-probabilities (n, A) of all that could have been chosen, and hidden states (n, D), of a slice.
        labels_N: what was chosen, as an index of those A.
        old_logp_N: its log-probability when it was sampled; NaN where no model sampled it.
        advantages_N: how much better it turned out than expected, not yet normalised.
        returns_N: discounted reward-to-go: what the critic learns.
        values_N: what the critic expected before this update; None without a critic.
        ref_logp: the reference's log-probabilities (n, A), shaped as `minibatches`, where the loss has a KL term.
        metrics: what else is to be reported of the batch.
    """

    minibatches: Sequence[Sequence[tuple[Any, Any]]]
    read: Callable[[Any], tuple[Tensor, Tensor]]
    labels_N: Tensor
    old_logp_N: Tensor
    advantages_N: Tensor
    returns_N: Tensor
    values_N: Tensor | None = None
    ref_logp: Sequence[Sequence[Tensor]] = ()
    metrics: dict[str, float] = field(default_factory=dict)


class Rollouts(ABC):
    """Where the batches of online RL come from; a kind of its own defines `evaluate` and `collect` at least.

    Attributes:
        lm: the model that plays (or writes) and learns.
        reference: a frozen copy from which it is not to stray; None where that costs nothing.
    """

    def __init__(self, lm: LanguageModel, config: RLConfig, seed: int) -> None:
        self.lm, self.config, self.seed = lm, config, seed
        self.reference = lm.frozen_copy() if config.kl_coef else None

    def about(self) -> dict[str, object]:
        """What every line of metrics says beside its step."""
        return {}

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Scores on validation tasks: what matters most comes first, and more is better."""

    @abstractmethod
    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        """Play (or write) with the present weights."""

    def replay(self, critic: ValueHead | None) -> Batch | None:
        """Past successes to be learned from after the fresh batch; None if there are none."""
        return None

    def end_update(self) -> dict[str, float]:
        """Called when the weights have changed; returns metrics of the batch that was collected."""
        return {}

    def state(self) -> dict[str, Any]:
        """What must be saved beside the weights, as JSON values."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (what has no state has nothing to load)
        """Go on from what `state` returned."""

    def close(self) -> None:  # noqa: B027
        """Called when the training has ended, and nothing will be played any more."""
