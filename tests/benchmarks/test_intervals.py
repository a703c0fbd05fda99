"""Bootstrap intervals over seeds: how often they cover the truth in simulation, and comparisons by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import (
    cluster_bootstrap,
    interquartile_mean,
    probability_of_improvement,
    stratified_bootstrap,
)
from reflectrl.core.statistics import wilson


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
