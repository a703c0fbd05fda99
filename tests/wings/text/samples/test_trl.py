"""TRL's columns: every form is read back as the samples that it was made of."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.text.samples import Sample, group_of, read_samples, to_trl
from reflectrl.wings.text.samples.writing import FORMS, write_lines

words = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)
rewards = st.integers(-3, 3).map(float)
pairs = st.lists(st.tuples(st.sampled_from("pqr"), words, rewards), min_size=1, max_size=8)


def made(rows: list[tuple[str, str, float]]) -> list[Sample]:
    return [Sample(str(i), group_of(p), p, c, r) for i, (p, c, r) in enumerate(rows)]


def again(folder: Path, samples: list[Sample], form: str, **options: Any) -> list[Sample]:
    """The samples after they were written in a form and read again; [] where the form has no row for them."""
    rows = [json.dumps(row) for row in to_trl(samples, form, **options)]
    write_lines(folder / "s.jsonl", rows)
    return list(read_samples(folder / "s.jsonl")) if rows else []


def told(samples: list[Sample]) -> list[tuple[str, str, str, float]]:
    return [(one.group, one.prompt, one.completion, one.reward) for one in samples]


@settings(max_examples=40)
@given(pairs)
def test_prompt_and_completion(tmp_path_factory: Any, rows: list[tuple[str, str, float]]) -> None:
    samples = made(rows)
    assert told(again(tmp_path_factory.mktemp("t"), samples, "prompt-completion")) == told(samples)


@settings(max_examples=40)
@given(pairs)
def test_unpaired(tmp_path_factory: Any, rows: list[tuple[str, str, float]]) -> None:
    samples = made(rows)
    found = again(tmp_path_factory.mktemp("t"), samples, "unpaired", threshold=0.5)
    assert [(one.prompt, one.completion) for one in found] == [(one.prompt, one.completion) for one in samples]
    assert [one.reward for one in found] == [float(one.reward > 0.5) for one in samples]


@settings(max_examples=40)
@given(pairs)
def test_preferences_are_true_and_complete(tmp_path_factory: Any, rows: list[tuple[str, str, float]]) -> None:
    samples = made(rows)
    found = again(tmp_path_factory.mktemp("t"), samples, "preference")
    means: dict[str, dict[str, list[float]]] = {}
    for one in samples:
        means.setdefault(one.prompt, {}).setdefault(one.completion, []).append(one.reward)
    expected = 0
    for earned in means.values():
        scores = [sum(rewards) / len(rewards) for rewards in earned.values()]
        expected += sum(score < max(scores) for score in scores)
    assert len(found) == 2 * expected
    for chosen, rejected in zip(found[::2], found[1::2], strict=True):
        assert chosen.prompt == rejected.prompt and chosen.completion != rejected.completion
        assert chosen.reward > rejected.reward


def test_the_mean_divides_desirable_from_undesirable() -> None:
    rows = list(to_trl(made([("p", "a", 0.0), ("p", "b", 1.0), ("p", "c", 5.0)]), "unpaired"))
    assert [row["label"] for row in rows] == [False, False, True]


def test_pairs_are_those_of_our_own_learner() -> None:
    samples = made(
        [("p", "b", 1.0), ("p", "a", 3.0), ("p", "b", 2.0), ("p", "c", 1.5), ("q", "a", 1.0), ("q", "b", 1.0)]
    )
    assert [(row["chosen"], row["rejected"], row["score_rejected"]) for row in to_trl(samples, "preference")] == [
        ("a", "b", 1.5),
        ("a", "c", 1.5),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_samples_without_a_reward_are_refused(form: str) -> None:
    with pytest.raises(UserError, match="1 samples have no reward yet, the first being '0'"):
        to_trl(made([("p", "a", math.nan)]), form)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UserError, match="unknown form 'preferences' \\(did you mean 'preference'"):
        to_trl([], "preferences")
