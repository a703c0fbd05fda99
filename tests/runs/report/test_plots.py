"""The numbers behind the curves."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest

from reflectrl.runs.report.data import Metric, read_metrics
from reflectrl.runs.report.learned import by_episodes, by_minutes, learned_plots
from reflectrl.runs.report.plots import POINTS, curve, curve_sections, stage_changes, window_of
from reflectrl.runs.report.svg import drawing, looks


def metric(step: int, seed: int = 0, stage: str = "", arm: str = "sft", **values: float) -> Metric:
    return Metric(arm, "rl", seed, step, stage, values)


def test_a_curve_holds_one_value_per_seed_and_step() -> None:
    lines = [metric(0, seed=0, loss=1.0), metric(0, seed=1, loss=3.0), metric(5, seed=0, loss=2.0), metric(5, seed=1)]
    assert curve(lines, "loss") == {0: [1.0, 3.0], 5: [2.0]}


def test_a_step_logged_again_after_a_restart_counts_once() -> None:
    assert curve([metric(3, loss=9.0), metric(3, loss=1.0)], "loss") == {3: [1.0]}


def test_windows_average_within_a_seed() -> None:
    lines = [metric(step, seed=seed, loss=step + 100 * seed) for step in range(8) for seed in (0, 1)]
    assert curve(lines, "loss", window=4) == {2: [1.5, 101.5], 6: [5.5, 105.5]}


def test_windows_keep_curves_short_and_leave_short_ones_alone() -> None:
    assert window_of(range(0, 10 * POINTS, 10)) == 1
    for count in (POINTS + 1, 333, 5000):
        width = window_of(range(count))
        assert width > 1
        assert len(curve([metric(step, loss=1.0) for step in range(count)], "loss", width)) <= POINTS + 1


def test_stage_changes_are_drawn_only_where_all_agree() -> None:
    lines = [metric(step, seed, stage) for seed in (0, 1) for step, stage in ((0, "key"), (5, "key"), (9, "full"))]
    assert stage_changes(lines) == {0: "key", 9: "full"}
    assert stage_changes([*lines, metric(0, 2, "key"), metric(7, 2, "full")]) == {}
    assert stage_changes([metric(0, stage="full"), metric(1, stage="full")]) == {}


def test_usual_arms_look_the_same_in_every_report_and_no_two_arms_look_alike() -> None:
    alone, together = looks(["reflect-rl"]), looks(["mine", "random", "sft", "reflect-rl", "yours", "shared"])
    assert alone["reflect-rl"] == together["reflect-rl"]
    assert len({(look.series, look.dashes) for look in together.values()}) == 6


def test_what_reward_taught_is_drawn_over_episodes_played_and_over_minutes() -> None:
    lines = [(0, 64.0, 0.25), (1, 128.0, None), (2, 192.0, 0.75), (3, 192.0, 1.0)]
    values = [{"episodes": n} | ({} if won is None else {"eval_success": won}) for _, n, won in lines]
    rl = [Metric("reflect-rl", "rl", 0, step, "", one) for (step, *_), one in zip(lines, values, strict=True)]
    assert by_episodes(rl, "reflect-rl", 0) == [(0.0, 0.25), (128.0, 0.75), (192.0, 1.0)]
    shared = {"kind": "rl", "arm": "reflect-rl", "seed": 0}
    spent = [(0, 6.0), (2, 60.0), (0, 3.0), (2, 30.0), (3, 30.0)]  # killed after step 2, and begun again
    times = [{**shared, "step": step, "seconds": seconds} for step, seconds in spent]
    told = by_minutes(rl, times, "reflect-rl", 0)
    assert [won for _, won in told] == [0.25, 0.75, 1.0]
    assert [minutes for minutes, _ in told] == pytest.approx([1.15, 1.65, 2.15])
    arms, plots = learned_plots(rl, times, looks(["reflect-rl"]))
    assert arms == ["reflect-rl"]
    assert [plot.title for plot in plots] == ["By episodes played", "By minutes of training"]
    assert learned_plots([metric(1, arm="sft", eval_success=1.0)], times, looks(["sft"])) == ([], [])


def test_trainings_that_arms_share_have_a_curve_each(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"kind": "sft", "seed": 0, "arm": None, "artifact": name, "step": step, "loss": loss}
        for name, loss in (("plain", 1.0), ("plain-positive", 2.0))
        for step in (0, 5)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    metrics = read_metrics(path)
    [section] = curve_sections(metrics, looks(metric.arm for metric in metrics))
    assert section.arms == ("plain", "plain-positive") and section.shared


def test_settings_of_a_file_in_the_current_folder_change_no_plot() -> None:
    """`matplotlibrc` there may be a stranger's, and LaTeX would run what it names."""
    with matplotlib.rc_context({"text.usetex": True, "lines.linewidth": 20, "savefig.facecolor": "red"}):
        before = dict(matplotlib.rcParams)
        with drawing(3, 2):
            assert not matplotlib.rcParams["text.usetex"] and matplotlib.rcParams["lines.linewidth"] < 3
        assert dict(matplotlib.rcParams) == before
