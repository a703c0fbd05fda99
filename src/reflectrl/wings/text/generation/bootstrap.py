"""Bootstrap confidence intervals of a mean reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_bootstrap(
    values_by_seed: Sequence[Sequence[float]], confidence: float, rng: np.random.Generator, resamples: int = 10_000
) -> tuple[float, float]:
    """Return the percentile interval of a mean pooled over seeds, by a two-stage bootstrap.

    Seeds are drawn with replacement, then as many values of each drawn seed (Davison and Hinkley 1997, "Bootstrap
    Methods and their Application", section 3.8).

    Args:
        values_by_seed: for each seed, one number per episode or completion; seeds without any are left out.
        confidence: confidence level in (0, 1).
        rng: random generator of the resampling.
        resamples: number of bootstrap samples.

    Returns:
        (low, high). With one seed, the interval holds for that seed's model only.

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
