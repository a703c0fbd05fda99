"""Confidence intervals of success rates and means, as printed beside every result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def wilson(successes: int, episodes: int, confidence: float) -> tuple[float, float]:
    """Compute Wilson's score interval of a success rate over independent episodes.

    It keeps a width if all episodes were won, or all lost, when the usual normal interval shrinks to a point (Wilson
    1927; computed by `scipy.stats.binomtest`). It describes the episodes of a single trained model, and says nothing
    about other seeds of training. For these, see `mean_interval`.

    Args:
        successes: episodes won.
        episodes: episodes played. Without any, the interval is (0, 1).
        confidence: level in (0, 1), such as 0.95.

    Returns:
        (low, high) within [0, 1].
    """
    if episodes == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest  # slow to import, and `import reflectrl` is quick

    interval = binomtest(successes, episodes).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Compute Student's t interval of a mean over independent seeds of training.

    Args:
        values: one number per seed (a success rate, a return).
        confidence: level in (0, 1).

    Returns:
        (low, high), not clipped to any range. None for fewer than two values, since a single seed says nothing about
        the spread between seeds. Equal values give an interval of width 0, which means "no spread seen", not certainty.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    half = t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def prediction_interval(wins: Sequence[int], episodes: int, confidence: float) -> tuple[float, float] | None:
    """Compute Student's t prediction interval for the success rate of a further run, on another seed or machine.

    A new run falls outside with probability 1 - confidence. That says more than the least and largest rate seen: of
    four runs, a fifth falls outside their range with 40 %. Rates are compared on the scale asin(√p), on which a
    binomial rate spreads equally everywhere (Anscombe 1948). The spread is at least that of `episodes` independent
    episodes, so that runs which all won everything do not promise the same for ever.

    Args:
        wins: episodes won, one number per run.
        episodes: episodes of each run, and of the new one.
        confidence: level in (0, 1).

    Returns:
        (low, high) within [0, 1]. None for fewer than two runs, or without episodes.
    """
    if len(wins) < 2 or episodes == 0:
        return None
    from scipy.stats import t

    angles = np.arcsin(np.sqrt((np.asarray(wins) + 3 / 8) / (episodes + 3 / 4)))
    variance = max(float(np.var(angles, ddof=1)), 1 / (4 * episodes + 2))
    half = t.ppf((1 + confidence) / 2, len(wins) - 1) * np.sqrt(variance * (1 + 1 / len(wins)))
    ends = np.sin(np.clip([angles.mean() - half, angles.mean() + half], 0, np.pi / 2)) ** 2
    low, high = np.clip((ends * (episodes + 3 / 4) - 3 / 8) / episodes, 0, 1)
    return float(low), float(high)
