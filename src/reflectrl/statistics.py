"""Intervals around success rates and means, as printed beside every result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def wilson(successes: int, episodes: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a success rate over independent episodes.

    It keeps its width when every episode was won or lost, where the usual normal interval shrinks to a point (Wilson
    1927; computed by `scipy.stats.binomtest`). It speaks of the episodes played with one trained model: what another
    seed of training would have given is the business of `cluster_bootstrap`.

    Args:
        successes: episodes won.
        episodes: episodes played; with none, the interval is (0, 1).
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
    """Student's t interval of a mean over independent seeds of training.

    Args:
        values: one number per seed (a success rate, a return).
        confidence: level in (0, 1).

    Returns:
        (low, high), not cut to any range; None for fewer than two values, since one seed shows nothing of the spread
        between seeds. Equal values give an interval without width: read it as "no spread seen", not as certainty.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    half = t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def cluster_bootstrap(
    successes_by_seed: Sequence[Sequence[bool]], confidence: float, rng: np.random.Generator, resamples: int = 10_000
) -> tuple[float, float]:
    """Percentile interval of the success rate pooled over seeds, when episodes of one seed resemble each other.

    Two-stage bootstrap: seeds are drawn with replacement, then as many episodes of each drawn seed (Davison and Hinkley
    1997, "Bootstrap Methods and their Application", section 3.8). The number of wins among n episodes drawn with
    replacement is binomial, and is drawn as such. Too narrow with few seeds: where models spread by 0.1 around a rate
    of 0.7 (100 episodes each), a 95 % interval held the truth in 86 % of simulations with 3 seeds, 89 % with 5, 93 %
    with 8; Wilson's in 60 %, and `mean_interval` of the seeds' rates in 95 %.

    Args:
        successes_by_seed: for each seed, whether each of its episodes was won; seeds without episodes are left out.
        confidence: level in (0, 1).
        rng: source of the resampling.
        resamples: number of bootstrap samples.

    Returns:
        (low, high) within [0, 1]; Wilson's interval of the pooled episodes when all or none were won, where resampling
        can only repeat what was seen.
    """
    episodes_S = np.array([len(seed) for seed in successes_by_seed if len(seed)], dtype=np.int64)
    wins_S = np.array([sum(map(bool, seed)) for seed in successes_by_seed if len(seed)], dtype=np.int64)
    wins, episodes = int(wins_S.sum()), int(episodes_S.sum())
    if wins in (0, episodes):
        return wilson(wins, episodes, confidence)
    drawn_RS = rng.integers(len(episodes_S), size=(resamples, len(episodes_S)))
    wins_RS = rng.binomial(episodes_S[drawn_RS], (wins_S / episodes_S)[drawn_RS])
    rates_R = wins_RS.sum(axis=1) / episodes_S[drawn_RS].sum(axis=1)
    low, high = np.quantile(rates_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def mean_bootstrap(
    values_by_seed: Sequence[Sequence[float]], confidence: float, rng: np.random.Generator, resamples: int = 10_000
) -> tuple[float, float]:
    """Percentile interval of the mean of numbers pooled over seeds, by the two-stage bootstrap of `cluster_bootstrap`.

    Args:
        values_by_seed: for each seed, one number per episode or completion; seeds without any are left out.
        confidence: level in (0, 1).
        rng: source of the resampling.
        resamples: number of bootstrap samples.

    Returns:
        (low, high); with one seed it speaks of that seed's model only.

    Raises:
        ValueError: no seed has a value.
    """
    seeds = [np.asarray(seed, dtype=float) for seed in values_by_seed if len(seed)]
    if not seeds:
        raise ValueError("no values")
    means = np.empty(resamples)
    for i in range(resamples):
        drawn = [rng.choice(seeds[s], len(seeds[s])) for s in rng.integers(len(seeds), size=len(seeds))]
        means[i] = np.concatenate(drawn).mean()
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
