"""Intervals against published numbers, and how often they cover the truth in simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.statistics import mean_interval, prediction_interval, wilson


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


def test_prediction_interval_by_hand():
    # n = 100; asin(sqrt((x + 3/8) / 100.75)) of 50, 60, 70 wins, mean 0.886750, sd 0.102075 (more than 1/sqrt(402));
    # t(0.975, 2) = 4.302653, so the half-width is 4.302653 * sd * sqrt(4/3). The lower end is sin2 of the difference.
    angles = [math.asin(math.sqrt((wins + 0.375) / 100.75)) for wins in (50, 60, 70)]
    mean = sum(angles) / 3
    sd = math.sqrt(sum((angle - mean) ** 2 for angle in angles) / 2)
    half = 4.302653 * sd * math.sqrt(4 / 3)
    low, high = ((100.75 * math.sin(end) ** 2 - 0.375) / 100 for end in (mean - half, mean + half))
    assert prediction_interval([50, 60, 70], 100, 0.95) == pytest.approx((low, high), abs=1e-5)
    assert (low, high) == (pytest.approx(0.1346, abs=1e-4), pytest.approx(0.9725, abs=1e-4))


def test_a_prediction_keeps_its_width_where_all_runs_won_everything_and_stays_within_the_range():
    interval = prediction_interval([90, 90, 90, 90], 90, 0.95)
    assert interval == (pytest.approx(0.94, abs=0.01), 1.0)
    assert prediction_interval([0, 0], 90, 0.95) == (0.0, pytest.approx(0.63, abs=0.15))


def test_one_run_predicts_nothing():
    assert prediction_interval([80], 90, 0.95) is None and prediction_interval([0, 0], 0, 0.95) is None


def test_a_new_run_lies_in_the_prediction_as_often_as_it_says():
    # Runs whose true rates spread around 90 %, each measured on 90 episodes; four are seen, the fifth is predicted.
    rng = np.random.default_rng(0)
    rates = 1 / (1 + np.exp(-rng.normal(2.2, 0.6, size=(600, 5))))
    wins = rng.binomial(90, rates)
    intervals = [prediction_interval(seen, 90, 0.95) for seen in wins[:, :4].tolist()]
    inside = [low - 1e-9 <= new / 90 <= high + 1e-9 for (low, high), new in zip(intervals, wins[:, 4], strict=True)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
