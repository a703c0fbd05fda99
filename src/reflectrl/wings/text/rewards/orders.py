"""Reward components of the task "orders", computed by a program (see `samples/orders.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.samples import orders
from reflectrl.wings.text.samples.sample import Sample


class Relevance(Component):
    """Match between the dishes that the answer names and the dishes that were ordered."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return F1 scores in [0, 1]; UserError if a sample's meta has no "ordered"."""
        return [orders.relevance(_ordered(sample), response_of(sample)) for sample in samples]


class Politeness(Component):
    """Politeness of the answer's beginning."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return 1 for each answer that begins politely, else 0."""
        return [orders.politeness(response_of(sample)) for sample in samples]


class Economy(Component):
    """Absence of repetition in the answer."""

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return shares of distinct word pairs, in [0, 1]."""
        return [orders.economy(response_of(sample)) for sample in samples]


def _ordered(sample: Sample) -> list[str]:
    ordered = sample.meta.get("ordered")
    if not isinstance(ordered, list):
        raise UserError(f"reward order_relevance: sample {sample.id!r} does not say in its meta what was 'ordered'")
    return ordered
