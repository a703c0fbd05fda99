"""Calibration of probabilities: whether choices are right as often as their probabilities say.

A *decision* is a choice, the probability that the player gave to it (its confidence), and whether the choice was right.
Over many decisions, a calibrated player is right in 80 % of those with confidence 0.8.
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
"""Smallest probability that is used. Logged probabilities are rounded, so they may be 0."""

UNCHANGED = (1.0, 1.0, 0.0)
"""Beta calibration that changes nothing."""


@dataclass(frozen=True)
class Calibration:
    """Turns scores of options into the probabilities that a policy reports. The choice stays the same.

    Scores are divided by a temperature first. Then the probability p of the choice becomes p', with

        log(p' / (1 - p')) = a log(p) - b log(1 - p) + c

    (beta calibration, Kull et al. 2017), and the other options share 1 - p' in proportion. The second step is needed
    because several options are often right, while their probabilities sum to 1: a policy that is torn between two right
    options is certainly right, though each has a probability of 0.5, and no temperature can express that.

    Attributes:
        temperature: temperature of the softmax.
        beta: a, b and c.

    Raises:
        ValueError: a number is not finite, the temperature is not above 0, or a or b is negative.
    """

    temperature: float = 1.0
    beta: tuple[float, float, float] = UNCHANGED

    def __post_init__(self) -> None:
        a, b, _ = self.beta
        if not np.isfinite([self.temperature, *self.beta]).all() or self.temperature <= 0 or min(a, b) < 0:
            raise ValueError(f"not a calibration: temperature {self.temperature}, beta {self.beta}")

    def logp(self, logits_A: np.ndarray) -> np.ndarray:
        """Return log-probabilities of a decision's options (A,), from their scores or log-probabilities."""
        choice = int(np.argmax(logits_A))  # before division, which can make two scores equal
        logits_A = logits_A / self.temperature
        logp_A = logits_A - np.logaddexp.reduce(logits_A)
        if self.beta == UNCHANGED or len(logp_A) == 1:
            return logp_A
        logp, others = _choice_and_others(logp_A, choice)
        a, b, c = self.beta
        log_odds = a * logp - b * others + c
        # Without this, the likeliest of the other options could end above the choice.
        log_odds = max(log_odds, float(np.delete(logp_A, choice).max()) - others)
        logp_A = logp_A - others - np.logaddexp(0.0, log_odds)
        logp_A[choice] = -np.logaddexp(0.0, -log_odds)
        return logp_A


def _choice_and_others(logp_A: np.ndarray, choice: int) -> tuple[float, float]:
    """Return the log-probabilities of a choice, and of all other options together."""
    return float(logp_A[choice]), float(np.logaddexp.reduce(np.delete(logp_A, choice)))


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
    filled_bins = []
    for part in np.array_split(np.arange(len(ordered)), bins):
        members = [ordered[i] for i in part]
        if members:
            confidence = float(np.mean([decision.confidence for decision in members]))
            filled_bins.append(
                Bin(len(members), confidence, float(np.mean([decision.correct for decision in members])))
            )
    return filled_bins


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Compute the mean distance between confidence and accuracy of the bins, weighted by their size (Guo et al. 2017).

    With equally many decisions per bin, no bin's accuracy rests on a handful of decisions.
    """
    total = sum(bin_.count for bin_ in bins)
    return sum(bin_.count * abs(bin_.confidence - bin_.accuracy) for bin_ in bins) / total


def brier_score(decisions: Sequence[Decision]) -> float:
    """Compute the mean squared difference between confidence and correctness (0 or 1) of the choices."""
    return float(np.mean([(decision.confidence - decision.correct) ** 2 for decision in decisions]))


def calibration_row(decisions: Sequence[Decision], judge: str) -> dict[str, Any]:
    """Return the calibration of an arm as keys of a row of results; empty without decisions.

    Args:
        judge: authority on which choices are right, "teacher" or "outcome".
    """
    if not decisions:
        return {}
    bins = reliability(decisions)
    return {
        "ece": expected_calibration_error(bins),
        "brier": brier_score(decisions),
        "decisions": len(decisions),
        "judge": judge,
        "reliability": [[bin_.count, bin_.confidence, bin_.accuracy] for bin_ in bins],
    }


def fit(probabilities: Sequence[Sequence[float]], best: Sequence[Sequence[int]]) -> Calibration:
    """Fit a calibration to decisions: the temperature first, then the probability that the choice is right.

    Args:
        probabilities: for each decision, the probability of each option.
        best: for each decision, the options that are right. Decisions without any are left out.
    """
    temperature = fit_temperature(probabilities, best)
    scaled = Calibration(temperature)
    logp, others, correct = list[float](), list[float](), list[bool]()
    for probs, right_options in zip(probabilities, best, strict=True):
        if len(probs) > 1 and right_options:
            logp_A = scaled.logp(np.log(np.maximum(probs, FLOOR)))
            choice = int(np.argmax(logp_A))
            of_choice, of_others = _choice_and_others(logp_A, choice)
            logp.append(of_choice)
            others.append(of_others)
            correct.append(choice in right_options)
    return Calibration(temperature, _fit_beta(np.array(logp), np.array(others), np.array(correct, bool)))


def _fit_beta(logp_N: np.ndarray, others_N: np.ndarray, correct_N: np.ndarray) -> tuple[float, float, float]:
    """Fit a, b and c of `Calibration` by maximum a posteriori, with a normal prior of unit width around no change.

    Args:
        logp_N, others_N: log-probability of each choice, and of all other options together.
        correct_N: True where the choice was right.
    """
    from scipy.optimize import minimize  # slow to import, and needed after training only

    sign_N = np.where(correct_N, 1.0, -1.0)

    def loss(beta: np.ndarray) -> float:
        log_odds_N = beta[0] * logp_N - beta[1] * others_N + beta[2]
        return float(np.logaddexp(0.0, -sign_N * log_odds_N).sum() + ((beta - UNCHANGED) ** 2).sum() / 2)

    # With a and b at least 0, a more probable choice stays the more probable one.
    optimum = minimize(loss, np.array(UNCHANGED), method="L-BFGS-B", bounds=[(0.0, None), (0.0, None), (None, None)])
    a, b, c = optimum.x
    return float(a), float(b), float(c)


def fit_temperature(probabilities: Iterable[Sequence[float]], best: Iterable[Sequence[int]]) -> float:
    """Find the temperature that makes the right choices most probable: softmax(log p / T) (Guo et al. 2017).

    The order of the options of a decision, and so the choice, stays the same. The log of the temperature has a normal
    prior of unit width around 0, so that a handful of decisions that are all right changes little.

    Args:
        probabilities: for each decision, the probability of each option.
        best: for each decision, the options that are right. Their probabilities are added.

    Returns:
        The temperature, 1 without decisions.
    """
    from scipy.optimize import minimize_scalar  # slow to import, and needed after training only

    logp, right = list[np.ndarray](), list[np.ndarray]()
    for probs, right_options in zip(probabilities, best, strict=True):
        if len(probs) > 1 and right_options:
            logp.append(np.log(np.maximum(probs, FLOOR)))
            right.append(np.isin(np.arange(len(probs)), list(right_options)))
    if not logp:
        return 1.0

    def nll(log_temperature: float) -> float:
        total = log_temperature**2 / 2
        for logp_A, right_A in zip(logp, right, strict=True):
            scaled_A = logp_A / np.exp(log_temperature)
            total += np.logaddexp.reduce(scaled_A) - np.logaddexp.reduce(scaled_A[right_A])
        return float(total)

    optimum = minimize_scalar(nll, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded", options={"xatol": 1e-4})
    return float(np.exp(optimum.x))
