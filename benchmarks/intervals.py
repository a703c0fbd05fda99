"""Intervals and comparisons over seeds that the benchmarks report, in addition to `reflectrl.core.statistics`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reflectrl.core.statistics import wilson


def cluster_bootstrap(
    successes_by_seed: Sequence[Sequence[bool]], confidence: float, rng: np.random.Generator, resamples: int = 10_000
) -> tuple[float, float]:
    """Return a percentile interval of the success rate over all seeds, for episodes that are correlated within a seed.

    Two-stage bootstrap: seeds are drawn with replacement, then as many episodes of each drawn seed (Davison and Hinkley
    1997, "Bootstrap Methods and their Application", section 3.8). The number of wins among n episodes drawn with
    replacement is binomial, and is drawn as such. The interval is too narrow with few seeds. With models that spread by
    0.1 around a rate of 0.7 (100 episodes each), a 95 % interval held the truth in 86 % of simulations with 3 seeds, 89
    % with 5, 93 % with 8; Wilson's in 60 %, and `mean_interval` of the seeds' rates in 95 %.

    Args:
        successes_by_seed: for each seed, whether each of its episodes was won; seeds without episodes are left out.
        confidence: level in (0, 1).
        rng: source of the resampling.
        resamples: number of bootstrap samples.

    Returns:
        (low, high) within [0, 1]; Wilson's interval of the pooled episodes when all or none were won, since resampling
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


# ---- arms compared over several tasks, in the manner of rliable (Agarwal et al. 2021, "Deep Reinforcement Learning at
# the Edge of the Statistical Precipice") ------------------------------------------------------------------------------


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of all runs: more robust than the mean, less noisy than the median."""
    from scipy.stats import trim_mean

    return float(trim_mean(np.asarray(values, dtype=float), 0.25))


def stratified_bootstrap(
    statistic: Callable[..., float],
    arms: Sequence[Sequence[Sequence[float]]],
    confidence: float,
    rng: np.random.Generator,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Return a percentile interval of a statistic of some arms' runs. Seeds are resampled within each task.

    Args:
        statistic: takes, for each arm, its runs by task.
        arms: arm → task → one number per seed.
        confidence: level in (0, 1).
        rng: source of the resampling.
        resamples: number of bootstrap samples.

    Returns:
        (low, high). With three seeds per task it is too narrow by about a third; it is meant for ten or so, and for
        several tasks.
    """
    arrays = [[np.asarray(seeds, dtype=float) for seeds in arm] for arm in arms]
    drawn = [statistic(*([rng.choice(seeds, len(seeds)) for seeds in arm] for arm in arrays)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def probability_of_improvement(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the chance that a run of ours beats a run of theirs on a random task; ties count for half.

    Args:
        ours: task → one number per seed.
        theirs: the same for the other arm, over the same tasks.
    """
    wins = []
    for our_scores, their_scores in zip(ours, theirs, strict=True):
        difference = np.asarray(our_scores, dtype=float)[:, None] - np.asarray(their_scores, dtype=float)[None]
        wins.append(float((difference > 0).mean() + (difference == 0).mean() / 2))
    return float(np.mean(wins))
