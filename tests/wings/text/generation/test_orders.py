"""The small task: drawn from its seed, held out by dishes, judged by a program."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards import build
from reflectrl.wings.text.samples.dialogue import split
from reflectrl.wings.text.samples.orders import (
    DISHES,
    POLITE,
    Waiter,
    economy,
    listed,
    orders,
    politeness,
    relevance,
    split_of,
)
from reflectrl.wings.text.samples.sample import Sample

REWARD = {"order_relevance": 0.5, "order_politeness": 0.25, "order_economy": 0.25}


def test_the_seed_decides_everything():
    first, again, other = (list(orders(20, 2, "train", seed)) for seed in (0, 0, 1))
    assert [(s.id, s.prompt, s.completion) for s in first] == [(s.id, s.prompt, s.completion) for s in again]
    assert [s.prompt for s in first] != [s.prompt for s in other]


def test_no_set_of_dishes_is_in_two_splits():
    found = {
        name: {frozenset(s.meta["ordered"]) for s in orders(150, 1, name, 0)}
        for name in ("train", "validation", "test")
    }
    assert not found["train"] & found["test"]
    assert not found["train"] & found["validation"]
    assert not found["validation"] & found["test"]


def test_answers_share_the_group_of_their_prompt_which_is_a_dialogue():
    found = list(orders(10, 3, "test", 0))
    assert len({s.group for s in found}) == len({s.prompt for s in found}) == 10
    assert [role for role, _ in split(found[0].prompt)] == ["Human", "Assistant"]
    assert all(dish in found[0].prompt.lower() for dish in found[0].meta["ordered"])


def test_rewards_vary_within_a_prompt_and_a_perfect_waiter_earns_all():
    reward = build(REWARD)
    logged = reward.label(list(orders(100, 4, "train", 0)))
    assert 0.65 < sum(s.reward for s in logged) / len(logged) < 0.8
    assert sum(len({s.reward for s in logged if s.group == g}) > 1 for g in {s.group for s in logged}) > 80
    perfect = orders(30, 1, "train", 0, Waiter(polite=(1.0, 1.0), exact=1.0, repeats=0.0))
    assert {s.reward for s in reward.label(list(perfect))} == {1.0}


def test_components_by_hand():
    assert relevance(["tea", "ham"], "Fine. Tea and soup, coming up.") == 0.5
    assert relevance(["tea"], "") == 0
    assert relevance(["tea"], "steam") == 0
    assert politeness("  Gladly! Tea.") == 1
    assert politeness("Fine. Gladly!") == 0
    assert economy("in a minute, in a minute") == 3 / 5
    assert economy("tea") == economy("") == 0
    assert listed(["tea", "ham", "pie"]) == "tea, ham and pie"
    assert listed(["tea"]) == "tea"


def test_a_sample_without_an_order_is_named():
    with pytest.raises(UserError, match="sample 'x' does not say in its meta what was 'ordered'"):
        build(REWARD).label([Sample("x", "g", "p", " tea", 0.0)])


@settings(deadline=None)
@given(st.lists(st.sampled_from(DISHES), min_size=1, max_size=4, unique=True), st.text(max_size=40))
def test_components_stay_in_their_range_and_order_does_not_matter(dishes, text):
    assert 0 <= relevance(dishes, text) <= 1
    assert 0 <= economy(text) <= 1
    assert relevance(dishes, f"{POLITE[0]} {listed(dishes[::-1])}") == 1
    assert split_of(dishes) == split_of(dishes[::-1])
