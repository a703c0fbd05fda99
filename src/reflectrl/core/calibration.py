"""Calibration of probabilities: are choices right as often as they are said to be?

A *decision* is a choice with the probability that the player gave to it (its confidence), and the fact whether the
choice was right. Over many decisions, a calibrated player is right in 80 % of those with confidence 0.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 15
"""Number of bins of the expected calibration error. All hold equally many decisions."""

COLDEST, HOTTEST = 0.05, 20.0
"""Smallest and largest temperature that is fitted."""

FLOOR = 1e-7
"""Probability below which none is taken, since logged probabilities are rounded."""


@dataclass(frozen=True)
class Decision:
    """A choice and its judgement.

    Attributes:
        confidence: probability that the player gave to its choice.
        correct: True if the choice was right.
    """

    confidence: float
    correct: bool


@dataclass(frozen=True)
class Bin:
    """Decisions of similar confidence: their number, mean confidence, and share of right choices."""

    count: int
    confidence: float
    accuracy: float


def reliability(decisions: Sequence[Decision], bins: int = BINS) -> list[Bin]:
    """Sort decisions by confidence into bins of equal size (sizes differ by at most 1). Empty bins are left out."""
    ordered = sorted(decisions, key=lambda decision: decision.confidence)
    found = []
    for part in np.array_split(np.arange(len(ordered)), bins):
        chosen = [ordered[i] for i in part]
        if chosen:
            confidence = float(np.mean([decision.confidence for decision in chosen]))
            found.append(Bin(len(chosen), confidence, float(np.mean([decision.correct for decision in chosen]))))
    return found


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Compute the mean distance between confidence and accuracy of the bins, weighted by their size (Guo et al. 2017).

    With equally many decisions per bin, no bin's accuracy rests on a handful of decisions.
    """
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.confidence - one.accuracy) for one in bins) / total


def brier_score(decisions: Sequence[Decision]) -> float:
    """Compute the mean squared difference between confidence and correctness (0 or 1) of the choices."""
    return float(np.mean([(decision.confidence - decision.correct) ** 2 for decision in decisions]))


def calibration_row(decisions: Sequence[Decision], judge: str) -> dict[str, Any]:
    """Return the calibration of an arm as keys of a row of results; empty without decisions.

    Args:
        judge: who said which choices are right, "teacher" or "outcome".
    """
    if not decisions:
        return {}
    bins = reliability(decisions)
    return {
        "ece": expected_calibration_error(bins),
        "brier": brier_score(decisions),
        "decisions": len(decisions),
        "judge": judge,
        "reliability": [[one.count, one.confidence, one.accuracy] for one in bins],
    }


def fit_temperature(probabilities: Iterable[Sequence[float]], best: Iterable[Sequence[int]]) -> float:
    """Find the temperature that makes the right choices most probable: softmax(log p / T) (Guo et al. 2017).

    The order of the options of a decision, and so the choice, stays the same.

    Args:
        probabilities: for each decision, the probability of each option.
        best: for each decision, the options that are right. Their probabilities are added.

    Returns:
        The temperature, 1 without decisions.
    """
    from scipy.optimize import minimize_scalar  # slow to import, and needed after training only

    logp, right = list[np.ndarray](), list[np.ndarray]()
    for probs, chosen in zip(probabilities, best, strict=True):
        if len(probs) > 1 and chosen:
            logp.append(np.log(np.maximum(probs, FLOOR)))
            right.append(np.isin(np.arange(len(probs)), list(chosen)))
    if not logp:
        return 1.0

    def nll(log_temperature: float) -> float:
        total = 0.0
        for logp_A, right_A in zip(logp, right, strict=True):
            scaled_A = logp_A / np.exp(log_temperature)
            total += np.logaddexp.reduce(scaled_A) - np.logaddexp.reduce(scaled_A[right_A])
        return float(total)

    found = minimize_scalar(nll, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded", options={"xatol": 1e-4})
    return float(np.exp(found.x))
