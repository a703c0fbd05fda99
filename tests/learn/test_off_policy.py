"""Off-policy estimates: exact where they must be, unbiased, and with intervals that hold on logs of taxi rides."""

from itertools import product

import numpy as np
import pytest

from benchmarks.off_policy import coverage, taxi
from reflectrl.core.types import UserError
from reflectrl.learn.off_policy import LoggedEpisode, estimates
from reflectrl.learn.tabular_critic import LogMatrices, TabularCritic

LOGGED, EVALUATED = np.array([0.5, 0.5]), np.array([0.9, 0.1])
"""Probabilities of two actions, in every state."""


def path(actions: tuple[int, ...], evaluated: np.ndarray = EVALUATED) -> LoggedEpisode:
    """Two choices; only twice the first action wins. The second state tells what was chosen before."""
    states = ["start", f"after {actions[0]}"]
    won = float(actions == (0, 0))
    return LoggedEpisode(states, actions, [LOGGED[a] for a in actions], [evaluated] * 2, [0.0, won])


ALL = [path(actions) for actions in product((0, 1), repeat=2)] * 5
"""A log in which every path occurs as often as the logged player takes it."""


def test_every_estimate_is_exact_on_a_log_without_chance() -> None:
    for found in estimates(ALL):
        assert found.value == pytest.approx(0.81, abs=0.02 if found.method == "doubly robust" else 1e-9)
        assert found.low < 0.81 < found.high


def test_the_own_log_has_its_own_success() -> None:
    own = [path(actions, LOGGED) for actions in product((0, 1), repeat=2)] * 5
    _, normalised, weighted = estimates(own)
    assert normalised.value == weighted.value == pytest.approx(0.25)
    assert weighted.effective == pytest.approx(len(own))


def test_the_critic_is_the_solution_of_fitted_evaluation() -> None:
    log = LogMatrices.of(ALL * 200)  # so many that the prior does not count
    critic = TabularCritic(log, np.ones(len(ALL) * 200))
    assert critic.q("after 0", 0) == pytest.approx(1, abs=1e-3) and critic.q("after 1", 0) == pytest.approx(0, abs=1e-3)
    assert critic.q("start", 0) == pytest.approx(0.9, abs=2e-3)
    assert critic.values_E() == pytest.approx(0.81, abs=2e-3)
    assert critic.errors_N() == pytest.approx(0, abs=2e-3)  # nothing in this environment is left to chance
    assert critic.q("unseen", 1) == critic.default == 0.25


def test_few_effective_episodes_widen_the_intervals() -> None:
    """A log in which one episode has nearly all the weight is as uncertain as a log of two."""
    heavy = LoggedEpisode(["start"], [0], [1e-3], [np.array([1.0, 0.0])], [1.0])
    light = [LoggedEpisode(["start"], [0], [1.0], [np.array([1.0, 0.0])], [float(i % 2)]) for i in range(30)]
    evaluated = [*light, LoggedEpisode(["start"], [0], [1.0], [np.array([1.0, 0.0])], [1.0])]
    _, even, _ = estimates(evaluated, confidence=0.8)
    _, uneven, weighted = estimates([*light, heavy], confidence=0.8)
    assert even.effective == pytest.approx(31) and uneven.effective < 1.1
    assert even.low > 0.35 and even.high < 0.65
    assert uneven.low < 0.4  # the lowest resample without the heavy episode; a tenth of all is below 0.46
    assert weighted.value - weighted.low == pytest.approx(
        3.08 * 1000 / 31, rel=0.01
    )  # Student's quantile of one degree


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(UserError, match="at least 10"):
        estimates(ALL[:9])
    with pytest.raises(UserError, match="probability of every logged choice"):
        estimates([LoggedEpisode(["s"], [0], [0.0], [EVALUATED], [1.0])] * 10)


def test_intervals_hold_on_logs_of_taxi_rides() -> None:
    """Four small logs; `python -m benchmarks.off_policy` draws 100 large ones."""
    found = coverage(taxi(), logs=4, episodes=60)
    assert 0.3 < found["truth"] < 0.9
    assert 0 < found["logged success"][0] <= found["logged success"][1] < 0.6
    assert found["doubly robust"]["covers"] >= 0.5 and found["self-normalised"]["covers"] >= 0.5
    assert found["doubly robust"]["width"] < found["importance weighting"]["width"]
