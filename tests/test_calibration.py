"""Figures of calibration, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.calibration import (
    Decision,
    brier_score,
    calibration_row,
    expected_calibration_error,
    fit_temperature,
    reliability,
)

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
    sure = [[0.45, 0.45, 0.1]] * 20
    assert fit_temperature(sure, [(0, 1)] * 20) < 0.2, "always right: the surer the better"
    assert fit_temperature([[1.0], [0.5, 0.5]], [(0,), ()]) == 1.0
    assert fit_temperature([], []) == 1.0
