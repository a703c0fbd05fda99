"""Figures of calibration, against their definitions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reflectrl.core.calibration import (
    Calibration,
    Decision,
    brier_score,
    calibration_row,
    expected_calibration_error,
    fit,
    fit_temperature,
    reliability,
)
from reflectrl.core.config import from_dict
from reflectrl.core.types import UserError
from reflectrl.runs.card import PlaySettings

decisions = st.lists(st.builds(Decision, st.floats(0.01, 1), st.booleans()), min_size=1, max_size=80)


@given(decisions)
def test_bins_hold_every_decision_once_in_equal_numbers(found: list[Decision]) -> None:
    bins = reliability(found)
    counts = [one.count for one in bins]
    assert sum(counts) == len(found) and max(counts) - min(counts) <= 1 and len(bins) == min(15, len(found))
    assert sum(one.count * one.confidence for one in bins) == pytest.approx(sum(d.confidence for d in found))
    assert sum(one.count * one.accuracy for one in bins) == pytest.approx(sum(d.correct for d in found))
    assert [one.confidence for one in bins] == sorted(one.confidence for one in bins)
    overall = abs(np.mean([d.confidence for d in found]) - np.mean([d.correct for d in found]))
    assert overall - 1e-9 <= expected_calibration_error(bins) <= 1


def test_one_bin_by_hand() -> None:
    found = [Decision(0.9, True), Decision(0.7, False), Decision(0.8, True), Decision(0.8, True)]
    assert expected_calibration_error(reliability(found, bins=1)) == pytest.approx(abs(0.8 - 0.75))
    assert brier_score(found) == pytest.approx((0.01 + 0.49 + 0.04 + 0.04) / 4)
    assert calibration_row([], "teacher") == {}


def test_a_calibrated_player_has_a_small_error_and_an_overconfident_one_a_large_error() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1.0, size=6000)
    correct = rng.random(6000) < confidence
    honest = [Decision(float(p), bool(c)) for p, c in zip(confidence, correct, strict=True)]
    boastful = [Decision(min(1.0, float(p) + 0.2), bool(c)) for p, c in zip(confidence, correct, strict=True)]
    assert calibration_row(honest, "teacher")["ece"] < 0.03
    assert calibration_row(boastful, "teacher")["ece"] > 0.12


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_probabilities_too_sure_is_found(true: float) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(3000, 4)) * 2
    honest = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    best = [(int(rng.choice(4, p=row)),) for row in honest]
    shown = np.exp(logits * true) / np.exp(logits * true).sum(1, keepdims=True)
    assert fit_temperature(shown.tolist(), best) == pytest.approx(true, rel=0.12)


def test_several_right_options_count_together_and_empty_ones_not_at_all() -> None:
    sure = [[0.45, 0.45, 0.1]] * 2000
    assert fit_temperature(sure, [(0, 1)] * 2000) < 0.2, "always right: the surer the better"
    assert fit_temperature([[1.0], [0.5, 0.5]], [(0,), ()]) == 1.0
    assert fit_temperature([], []) == 1.0


finite = st.floats(-30, 30)
not_negative = st.floats(0, 5)


@example([-1e-178, 0.0], 1.0, 0.0, 0.0, 1.0)  # equal once they are divided
@given(st.lists(finite, min_size=1, max_size=12), st.floats(0.05, 20), not_negative, not_negative, st.floats(-8, 8))
def test_a_calibration_gives_probabilities_and_keeps_the_choice(
    logits: list[float], temperature: float, a: float, b: float, c: float
) -> None:
    logp = Calibration(temperature, (a, b, c)).logp(np.array(logits))
    assert np.exp(logp).sum() == pytest.approx(1)
    assert logp[int(np.argmax(logits))] >= logp.max() - 1e-9


def test_one_that_changes_nothing_is_the_softmax_and_another_follows_its_formula() -> None:
    logits = np.array([1.0, 2.0, 0.5])
    probs = np.exp(logits) / np.exp(logits).sum()
    assert np.exp(Calibration().logp(logits)) == pytest.approx(probs)
    log_odds = 1.5 * np.log(probs[1]) - 0.5 * np.log(1 - probs[1]) + 2.0
    changed = np.exp(Calibration(1.0, (1.5, 0.5, 2.0)).logp(logits))
    assert changed[1] == pytest.approx(1 / (1 + np.exp(-log_odds)))
    assert changed[0] / changed[2] == pytest.approx(probs[0] / probs[2]), "the others share the rest in proportion"


def test_a_policy_torn_between_two_right_options_is_sure_that_its_choice_is_right() -> None:
    """Half of these decisions have two right options, and the policy names one of them: no temperature can say 1."""
    rng = np.random.default_rng(2)
    probabilities, best = list[list[float]](), list[tuple[int, ...]]()
    for _ in range(2000):
        probabilities.append([0.44, 0.42, 0.08, 0.06])
        best.append((0, 1))
        probabilities.append([0.8, 0.1, 0.06, 0.04])
        best.append((0,) if rng.random() < 0.9 else (1,))
    found = fit(probabilities, best)

    def error(calibration: Calibration) -> float:
        decisions = list[Decision]()
        for probs, right in zip(probabilities, best, strict=True):
            logp = calibration.logp(np.log(probs))
            choice = int(np.argmax(logp))
            decisions.append(Decision(float(np.exp(logp[choice])), choice in right))
        row = calibration_row(decisions, "teacher")
        return float(row["ece"])

    assert error(Calibration(found.temperature)) > 0.1
    assert error(found) < error(Calibration(found.temperature)) / 2


@pytest.mark.parametrize(
    ("temperature", "beta"),
    [
        (0.0, (1, 1, 0)),
        (float("nan"), (1, 1, 0)),
        (1.0, (-1, 1, 0)),
        (1.0, (1, 1, float("nan"))),
        (1.0, (float("inf"), 1, 0)),
    ],
)
def test_numbers_that_are_no_calibration_are_refused(temperature: float, beta: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="not a calibration"):
        Calibration(temperature, beta)


@pytest.mark.parametrize("key", ["calibration", "beta_a", "beta_b", "beta_c"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e9, "1", [1.0]])
def test_a_card_from_elsewhere_with_such_numbers_is_refused_in_a_line(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=key):
        from_dict(PlaySettings, {key: value}, "card")


def test_a_handful_of_decisions_changes_little_and_none_changes_nothing() -> None:
    assert fit([], []) == Calibration() == fit([[1.0]], [(0,)])
    few = fit([[0.7, 0.3]] * 3, [(0,)] * 3)
    assert np.exp(few.logp(np.log([0.6, 0.4]))).max() < 0.9
