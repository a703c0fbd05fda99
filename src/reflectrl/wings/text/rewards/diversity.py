"""Diversity of a response: how rare its words are among the responses of the training set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from reflectrl.core.advice import install
from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.base import Component, response_of
from reflectrl.wings.text.samples.sample import Sample

FEW, SCALE = 5, 10.0
"""Number of different known words below which a response is scaled down, and the divisor of that scale."""


class Diversity(Component):
    """Mean of the non-zero tf-idf values of a response, under a vectoriser fitted on the training responses.

    The mean is in [0, 1], and 0 for a response whose words do not occur in the training responses. The tf-idf vector of
    a response has unit length, so the mean alone would be 1 for every response of one word. As in the released code,
    responses with fewer than five different known words are scaled down, to a tenth of the mean per known word.
    """

    def __init__(self) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError as error:
            raise UserError(f"reward diversity needs scikit-learn; {install('text')}") from error
        self._vectoriser: Any = TfidfVectorizer()
        self._seen = ""

    @property
    def fingerprint(self) -> str:
        """Identifier of the responses that the vectoriser was fitted on."""
        return f"Diversity of {FEW} words {self._seen}" if self._seen else ""

    def prepare(self, training: Sequence[Sample]) -> None:
        """Fit the vectoriser.

        Raises:
            UserError: no response of the training set holds a word.
        """
        responses = [response_of(sample) for sample in training]
        try:
            self._vectoriser.fit(responses)
        except ValueError as error:
            raise UserError("reward diversity: the training responses hold no words") from error
        self._seen = hashlib.sha256("\x1f".join(responses).encode()).hexdigest()[:16]

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return one scaled mean per sample."""
        if not self._seen:
            raise UserError("reward diversity needs training responses; there are none")
        rows = self._vectoriser.transform([response_of(sample) for sample in samples])
        counts_S = np.diff(rows.indptr)
        sums_S = np.asarray(rows.sum(axis=1)).ravel()
        means_S = sums_S / np.maximum(counts_S, 1)
        scales_S = np.where(counts_S < FEW, counts_S / SCALE, 1.0)
        return [float(score) for score in means_S * scales_S]
