"""Return-conditioned text: ranks of rewards, and prompts that begin with them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.text.learn.conditions import asked_for_the_best, condition_of, with_ranks
from reflectrl.wings.text.learn.text_dataset import prompt_ids
from reflectrl.wings.text.samples.sample import Sample


def rank_of(sample: Sample) -> int:
    return int(condition_of(sample).split()[1])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60))
def test_better_completions_never_have_lower_ranks(rewards: list[float]) -> None:
    samples = [Sample(str(i), str(i), "Hello", " yes", reward) for i, reward in enumerate(rewards)]
    told = sorted(with_ranks(samples), key=lambda sample: (sample.reward, rank_of(sample)))
    ranks = [rank_of(sample) for sample in told]
    assert ranks == sorted(ranks) and set(ranks) <= set(range(1, 11))
    assert [sample.prompt for sample in told] == ["Hello"] * len(rewards)


def test_ten_different_rewards_have_ten_ranks() -> None:
    samples = [Sample(str(i), str(i), "Hello", " yes", float(i)) for i in range(10)]
    assert [rank_of(sample) for sample in with_ranks(samples)] == list(range(1, 11))


@pytest.mark.parametrize("words", [3, 400])
def test_a_condition_stands_before_the_prompt_and_is_not_lost(tiny: Callable[..., Any], words: int) -> None:
    lm = tiny()
    sample = Sample("1", "1", "go " * words, " yes", 0.0)
    [asked] = asked_for_the_best([sample])
    plain, told = prompt_ids(lm, sample, 60, 10), prompt_ids(lm, asked, 60, 10)
    condition = tuple(lm.encode(condition_of(asked)))
    assert told[: len(condition)] == condition and len(told) <= 60
    rest = told[len(condition) :]
    assert rest == plain[len(plain) - len(rest) :]
