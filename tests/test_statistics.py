"""Intervals against published numbers, and how often they cover the truth in simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.statistics import (
    cluster_bootstrap,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
    stratified_bootstrap,
    wilson,
)


def test_wilson_by_hand():
    # centre (p + z2/2n) / (1 + z2/n), half-width z sqrt(p q / n + z2 / 4n2) / (1 + z2/n); p = 0.8, n = 10, z = 1.959964
    z, n, p = 1.959964, 10, 0.8
    centre, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    expected = ((centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n))
    assert wilson(8, 10, 0.95) == pytest.approx(expected, abs=1e-6)
    assert wilson(8, 10, 0.95) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_wilson_keeps_its_width_at_the_ends():
    # With no success the upper end is z2 / (n + z2).
    low, high = wilson(0, 10, 0.95)
    assert low == 0 and high == pytest.approx(1.959964**2 / (10 + 1.959964**2))
    assert wilson(10, 10, 0.95) == pytest.approx((1 - high, 1.0))
    assert wilson(0, 0, 0.95) == (0.0, 1.0)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.98))
def test_wilson_holds_the_rate_mirrors_failures_and_widens_with_confidence(counts, confidence):
    successes, episodes = counts
    low, high = wilson(successes, episodes, confidence)
    assert 0 <= low <= successes / episodes + 1e-12 and successes / episodes - 1e-12 <= high <= 1
    assert wilson(episodes - successes, episodes, confidence) == pytest.approx((1 - high, 1 - low))
    wider = wilson(successes, episodes, confidence + 0.01)
    assert wider[1] - wider[0] > high - low


def test_mean_interval_by_hand():
    # Mean 2, standard deviation 1, n = 3, t(0.975, 2) = 4.302653: half-width 4.302653 / sqrt(3).
    half = 4.302653 / math.sqrt(3)
    assert mean_interval([1.0, 2.0, 3.0], 0.95) == pytest.approx((2 - half, 2 + half), abs=1e-5)


def test_one_seed_gives_no_interval():
    assert mean_interval([0.9], 0.95) is None and mean_interval([], 0.95) is None


def test_mean_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    intervals = [mean_interval(rng.normal(3, 2, size=5).tolist(), 0.9) for _ in range(500)]
    covered = np.mean([interval is not None and interval[0] <= 3 <= interval[1] for interval in intervals])
    assert covered == pytest.approx(0.9, abs=0.04)  # three standard errors


def test_wilson_covers_the_truth_about_as_often_as_it_says():
    # Exactly, by summing the binomial probabilities of the counts whose interval holds the rate.
    n, rate = 40, 0.7
    counts = [k for k in range(n + 1) if wilson(k, n, 0.95)[0] <= rate <= wilson(k, n, 0.95)[1]]
    covered = sum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in counts)
    assert covered == pytest.approx(0.95, abs=0.02)


def outcomes(rng, spread: float, seeds: int, episodes: int) -> list[list[bool]]:
    """Episodes of models whose success rates are 0.6 plus or minus `spread`, as likely as not."""
    rates = 0.6 + spread * rng.choice([-1, 1], size=seeds)
    return [(rng.random(episodes) < rate).tolist() for rate in rates]


def test_bootstrap_covers_the_truth_where_seeds_differ_and_wilson_does_not():
    rng = np.random.default_rng(1)
    covered = {"bootstrap": 0, "wilson": 0}
    for _ in range(200):
        runs = outcomes(rng, spread=0.2, seeds=8, episodes=60)
        low, high = cluster_bootstrap(runs, 0.95, rng, resamples=400)
        covered["bootstrap"] += low <= 0.6 <= high
        low, high = wilson(sum(map(sum, runs)), 8 * 60, 0.95)
        covered["wilson"] += low <= 0.6 <= high
    assert covered["bootstrap"] / 200 > 0.88
    assert covered["wilson"] / 200 < 0.7


def test_bootstrap_of_one_seed_is_about_wilson():
    runs = [[True] * 70 + [False] * 30]
    assert cluster_bootstrap(runs, 0.95, np.random.default_rng(0)) == pytest.approx(wilson(70, 100, 0.95), abs=0.02)


def test_bootstrap_does_not_claim_certainty_from_a_clean_sweep():
    rng = np.random.default_rng(0)
    assert cluster_bootstrap([[True] * 20] * 3, 0.95, rng) == wilson(60, 60, 0.95)
    assert cluster_bootstrap([[False] * 20], 0.95, rng) == wilson(0, 20, 0.95)
    assert cluster_bootstrap([], 0.95, rng) == (0.0, 1.0)


def test_bootstrap_repeats_with_its_generator_and_skips_empty_seeds():
    runs = [[True, False, True, True], [False, False, True, False]]
    first = cluster_bootstrap(runs, 0.9, np.random.default_rng(3))
    assert first == cluster_bootstrap([runs[0], [], runs[1]], 0.9, np.random.default_rng(3))
    assert 0 <= first[0] < 0.5 < first[1] <= 1


def test_interquartile_mean_leaves_out_a_quarter_at_either_end():
    assert interquartile_mean([0.0, 1.0, 2.0, 100.0]) == 1.5
    assert interquartile_mean([3.0, 1.0, 2.0]) == 2.0  # fewer than four: nothing is left out


def test_probability_of_improvement_by_hand():
    assert probability_of_improvement([[1.0, 2.0]], [[0.0, 1.0]]) == pytest.approx(3.5 / 4)
    assert probability_of_improvement([[1.0], [0.0]], [[0.0], [1.0]]) == 0.5


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4))
def test_an_arm_improves_on_itself_half_the_time(runs):
    assert probability_of_improvement(runs, runs) == pytest.approx(0.5)


def test_stratified_bootstrap_covers_the_truth_and_keeps_tasks_apart():
    def gain(ours, theirs):
        return float(np.mean([np.mean(a) - np.mean(b) for a, b in zip(ours, theirs, strict=True)]))

    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        theirs = [rng.normal(level, 0.1, 10) for level in (0.0, 5.0)]
        ours = [rng.normal(level + 0.3, 0.1, 10) for level in (0.0, 5.0)]
        low, high = stratified_bootstrap(gain, [ours, theirs], 0.95, rng, 300)
        hits += low <= 0.3 <= high
        assert high - low < 0.4  # the distance of the tasks, 5, adds nothing
    assert 175 <= hits <= 199
