"""Components of the waiter's reward, judged by a program (see `samples/orders.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.types import UserError
from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.samples import orders
from reflectrl.wings.text.samples.sample import Sample


class Relevance(Component):
    """How well the dishes that are named match those that were ordered."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """F1 in [0, 1]; UserError if a sample's meta does not say what was ordered."""
        return [orders.relevance(_ordered(sample), response_of(sample)) for sample in samples]


class Politeness(Component):
    """Whether the answer begins politely."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """1 or 0."""
        return [orders.politeness(response_of(sample)) for sample in samples]


class Economy(Component):
    """Whether the answer says things once."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Shares in [0, 1]."""
        return [orders.economy(response_of(sample)) for sample in samples]


def _ordered(sample: Sample) -> list[str]:
    ordered = sample.meta.get("ordered")
    if not isinstance(ordered, list):
        raise UserError(f"reward order_relevance: sample {sample.id!r} does not say in its meta what was 'ordered'")
    return ordered
