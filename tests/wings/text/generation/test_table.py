"""Rows of metrics, and what is pooled from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.statistics import mean_interval
from reflectrl.wings.text.generation.bootstrap import mean_bootstrap
from reflectrl.wings.text.generation.table import metrics_of, pass_rates, percentiles, pooled, row_of
from reflectrl.wings.text.samples.sample import Sample


def row(arm="nll", seed=0, rewards=(0.0, 1.0), checkpoint="best", task="toy"):
    place = {"task": task, "arm": arm, "seed": seed, "checkpoint": checkpoint, "split": "test", "sampling": "greedy"}
    samples = [Sample(str(i), str(i), "p", "word", reward, {"a": seed}) for i, reward in enumerate(rewards)]
    return row_of(place, samples, {}, 0.95)


def test_metrics_of_labelled_completions():
    samples = [
        Sample("0", "g", "p", "the cat sat", 1.0, {"kind": 0.5, "tokens": 4}, meta={"knowledge": "the cat sat here"}),
        Sample("1", "h", "q", "a dog", 0.0, {"kind": 1.0, "tokens": 3}, meta={"knowledge": "nothing"}),
    ]
    found, kind = metrics_of(samples, {"g": ["the cat sat"], "h": []})
    assert found["kind"] == 0.75
    assert "tokens" not in found
    assert found["distinct-1"] == 1.0
    assert found["length"] == 2.5
    assert found["meteor"] == pytest.approx((1 - 0.5 / 27) / 2)
    assert kind.startswith("exact+stem")
    assert (found["coverage"], found["density"]) == (0.5, 1.5)
    bare, kind = metrics_of([Sample("0", "g", "p", "x", 0.0)], {})
    assert set(bare) == {"distinct-1", "distinct-2", "distinct-3", "length"}
    assert kind == ""


def test_a_row_has_the_mean_and_a_bootstrap_interval():
    found = row(rewards=(0, 1, 1, 1))
    assert (found.completions, found.reward) == (4, 0.75)
    assert 0 <= found.low < 0.75 < found.high <= 1
    assert found == row(rewards=(0, 1, 1, 1))


def test_seeds_are_pooled_by_their_means_with_student_t():
    rows = [row(seed=0, rewards=(0, 1)), row(seed=1, rewards=(1, 1, 1)), row("a_lol", rewards=(2, 2))]
    nll, a_lol = pooled(rows, 0.95)
    assert (nll.arm, nll.seeds, nll.completions, nll.reward) == ("nll", 2, 5, 0.75)
    assert (nll.low, nll.high) == mean_interval([0.5, 1.0], 0.95)
    assert nll.interval == "t over seeds"
    assert nll.metrics["a"] == 0.5
    assert (a_lol.low, a_lol.high, a_lol.interval) == (2, 2, "bootstrap over completions")


def test_best_and_last_and_tasks_are_lines_of_their_own():
    rows = [row(), row(checkpoint="last"), row(task="other")]
    assert [(line.task, line.checkpoint) for line in pooled(rows, 0.95)] == [
        ("toy", "best"),
        ("toy", "last"),
        ("other", "best"),
    ]


def test_the_bootstrap_of_a_mean_has_the_width_of_theory():
    rng = np.random.default_rng(0)
    values = rng.normal(3, 2, 400)
    low, high = mean_bootstrap([values], 0.95, np.random.default_rng(1), 2000)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    assert low < values.mean() < high
    with pytest.raises(ValueError, match="no values"):
        mean_bootstrap([[], []], 0.95, rng)


def test_the_bootstrap_sees_the_spread_between_seeds():
    seeds = [[0.0] * 50, [1.0] * 50]
    assert mean_bootstrap(seeds, 0.95, np.random.default_rng(1), 500) == (0, 1)


def test_percentiles():
    found = percentiles([-1.0, 0.0, 1.0, 2.0, 3.0])
    assert (found["p0"], found["p50"], found["p100"]) == (-1, 1, 3)
    assert (found["mean"], found["positive"]) == (1, 0.6)


def attempts(group: str, *answers: tuple[str, float]) -> list[Sample]:
    return [Sample(f"{group}#{i}", group, "p", text, reward) for i, (text, reward) in enumerate(answers)]


def test_pass_and_majority_rates_by_hand():
    first = attempts("g", ("a", 0.0), (" a ", 0.0), ("b", 1.0), ("c", 0.5))
    second = attempts("h", ("x", 1.0), ("x", 1.0), ("y", 0.0), ("x", 1.0))
    rates = pass_rates([first, second], 1.0)
    assert list(rates) == ["pass@1", "pass@2", "pass@4", "maj@1", "maj@2", "maj@4"]
    assert rates["pass@1"] == pytest.approx((1 / 4 + 3 / 4) / 2)
    assert rates["pass@2"] == pytest.approx((1 - 3 / 6 + 1) / 2)  # three of the first prompt's six pairs hold no win
    assert rates["pass@4"] == 1.0
    # Groups of two: "a" twice, then "b" or "c" by lot; "x" twice, then "y" or "x" by lot.
    assert rates["maj@2"] == pytest.approx(((0 + 1 / 2) / 2 + (1 + 1 / 2) / 2) / 2)
    assert rates["maj@4"] == pytest.approx((0 + 1) / 2)
    assert pass_rates([first], 0.5)["pass@1"] == 0.5
    tenths = attempts("g", ("a", 0.1 + 0.7 + 0.2))  # 0.9999999999999999
    assert pass_rates([tenths], 1.0) == {"pass@1": 1.0, "maj@1": 1.0}


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0])), min_size=5, max_size=5), min_size=1, max_size=4))  # fmt: skip  # noqa: E501
def test_more_attempts_never_pass_less_often_and_one_is_its_own_majority(prompts):
    rates = pass_rates([attempts(str(i), *answers) for i, answers in enumerate(prompts)], 1.0)
    passed = [rates[f"pass@{k}"] for k in (1, 2, 4, 5)]
    assert passed == sorted(passed)
    assert rates["maj@1"] == pytest.approx(rates["pass@1"])
    assert all(0 <= rates[f"maj@{k}"] <= rates[f"pass@{k}"] + 1e-9 for k in (1, 5))


def test_several_completions_of_a_prompt_are_one_draw_of_the_bootstrap_and_one_text_of_the_corpus():
    labels = {"task": "t", "arm": "a", "seed": 0, "checkpoint": "", "split": "test", "sampling": "sampled"}
    written = [*attempts("g", ("one two", 0.0), ("one two", 1.0)), *attempts("h", ("three four", 0.0), ("x", 1.0))]
    row = row_of(labels, written, {}, 0.95, pass_reward=1.0)
    assert (row.completions, row.reward, row.low, row.high) == (4, 0.5, 0.5, 0.5)  # both prompts have the mean 0.5
    assert (row.metrics["distinct-1"], row.metrics["length"]) == (1.0, 2.0)  # of "one two" and "three four"
    assert (row.metrics["pass@1"], row.metrics["pass@2"]) == (0.5, 1.0)
    assert not any("@" in name for name in row_of(labels, written, {}, 0.95).metrics)
