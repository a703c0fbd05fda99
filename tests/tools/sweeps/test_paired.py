"""Did I beat it? Differences on the same tasks, with intervals, and published rows beside them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.runs.report.data import Score
from reflectrl.runs.report.table import tables
from reflectrl.tools.sweeps.paired import Difference, difference, over_tasks
from reflectrl.tools.sweeps.published import published_rows


def wins(*success: str) -> dict[int, dict[tuple[str, int], bool]]:
    """Success by seed, from a text of 0 and 1 for each."""
    return {seed: {(f"task {i}", 0): mark == "1" for i, mark in enumerate(text)} for seed, text in enumerate(success)}


def verdict(first: dict, second: dict) -> str:
    result = difference(first, second)
    assert result is not None
    return Difference("mine", "theirs", "test", "greedy", *result).verdict


class TestDifference:
    def test_the_same_gap_counts_on_many_tasks_and_not_on_four(self) -> None:
        assert verdict(wins("1" * 40), wins("1" * 25 + "0" * 15)) == "mine is better"
        assert verdict(wins("1111"), wins("0000")) == "cannot be told apart"

    def test_seeds_that_disagree_widen_the_interval(self) -> None:
        assert verdict(wins("1" * 50), wins("0" * 50)) == "mine is better"
        disagree = wins("1" * 50, "0" * 50, "1" * 50)
        assert verdict(disagree, wins("0" * 50, "0" * 50, "0" * 50)) == "cannot be told apart"

    def test_arms_that_win_the_same_tasks_cannot_be_told_apart(self) -> None:
        assert verdict(wins("10" * 50), wins("10" * 50)) == "cannot be told apart"

    def test_only_tasks_that_both_played_count(self) -> None:
        result = difference(wins("1100"), wins("11"))
        assert result is not None and (result[0], result[3]) == (0, 2)
        assert difference(wins("1"), {}) is None

    def test_pairing_finds_what_separate_intervals_do_not(self) -> None:
        mine, theirs = "1" * 62 + "0" * 38, "1" * 50 + "0" * 50  # 62 and 50 of 100: Wilson's intervals overlap
        assert verdict(wins(mine), wins(theirs)) == "mine is better"

    @given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=2, max_size=40))
    def test_the_interval_is_symmetric_in_the_two_sides_and_never_a_point(self, gaps: list[float]) -> None:
        low, high = over_tasks(gaps)
        other_low, other_high = over_tasks([-gap for gap in gaps])
        assert low < high and (low, high) == pytest.approx((-other_high, -other_low))


def scores(**success: float) -> list[Score]:
    return [Score(arm.replace("_", "-"), "test", "full", "greedy", value) for arm, value in success.items()]


@pytest.mark.parametrize(
    ("success", "stars"),
    [
        ({"random": 0.3, "rl_only": 0.2}, []),
        ({"random": 0.0, "rl_only": 0.0}, []),
        ({"random": 0.3, "rl_only": 0.4}, ["rl-only"]),
        ({"expert": 1.0, "rl_only": 0.4}, ["rl-only"]),
    ],
)
def test_a_star_never_stands_below_random(success: dict[str, float], stars: list[str]) -> None:
    [table] = tables(scores(**success))
    assert [line.arm for line in table.lines if line.cells[0] is not None and line.cells[0].best] == stars


class TestCommand:
    def test_a_run_beside_its_copy_cannot_be_told_apart(
        self, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other, page = tmp_path / "other", tmp_path / "page.html"
        shutil.copytree(finished, other)
        assert main(["compare", str(finished), str(other), "--out", str(page)]) == 0
        said = capsys.readouterr().out
        assert "paired differences of success" in said and "+0.0 [" in said and "cannot be told apart" in said
        assert "other · reflect-rl" in page.read_text(encoding="utf-8").partition("Paired differences")[2]

    def test_one_run_is_compared_with_published_rows(
        self, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compare", str(finished), "--against", "results/taxi", "-o", str(tmp_path / "page.html")]) == 0
        assert "the published row is better" in capsys.readouterr().out

    def test_rows_that_there_are_not_are_refused_in_one_line(
        self, finished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compare", str(finished), "--against", "results/taksi"]) == 2
        assert "no published rows of 'taksi' (did you mean 'taxi'?)" in capsys.readouterr().err
        assert main(["compare"]) == 2


def test_random_play_is_compared_once_though_stages_are_evaluated(
    like: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "arms=random,sft-no-reflection eval.stages=key,full eval.splits=test eval.sampling=greedy"
    pipeline.run(like(*words.split()), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert main(["compare", str(tmp_path / "run"), str(tmp_path / "other"), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.count("run · random") == 1, "one line for each pair"


def test_published_rows_are_those_of_the_pages() -> None:
    for name in ("taxi", "taxi-arms", "frozenlake-rl", "alfworld"):
        for row in published_rows(name):
            figure = f"{100 * row.success:.1f}"
            text = (Path(__file__).parents[3] / row.page).read_text(encoding="utf-8")
            assert figure in text, f"{row.page} does not say {figure}"
