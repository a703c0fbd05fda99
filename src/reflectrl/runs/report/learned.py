"""The first plots of the page: success on validation tasks during RL, over episodes and over minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

from reflectrl.runs.report.data import Metric, in_page_order
from reflectrl.runs.report.plots import Plot
from reflectrl.runs.report.svg import MUTED, Look, drawing, to_svg

Points = list[tuple[float, float]]
"""(episodes or minutes so far, success) at every evaluation."""


def learned_plots(
    metrics: Sequence[Metric], times: Sequence[Mapping[str, Any]], looks: Mapping[str, Look]
) -> tuple[list[str], list[Plot]]:
    """Return the arms that learned by online RL, and the plots of their success; ([], []) if there are none.

    Args:
        times: lines of timings.jsonl. Lines of trainings hold the seconds since the previous evaluation.
    """
    rl = [metric for metric in metrics if metric.kind == "rl"]
    runs: dict[tuple[str, int], Points] = {}
    minutes: dict[tuple[str, int], Points] = {}
    for arm, seed in dict.fromkeys((metric.arm, metric.seed) for metric in rl):
        points = by_episodes(rl, arm, seed)
        if len(points) < 2:  # a single point is no curve
            continue
        runs[arm, seed] = points
        if len(timed := by_minutes(rl, times, arm, seed)) > 1:
            minutes[arm, seed] = timed
    plots = []
    for i, (title, curves) in enumerate((("By episodes played", runs), ("By minutes of training", minutes))):
        if curves:
            plots.append(Plot(title, _svg(curves, looks, title, f"learned-{i}-")))
    return in_page_order([arm for arm, _ in runs]), plots


def by_episodes(metrics: Sequence[Metric], arm: str, seed: int) -> Points:
    """Return success over the number of episodes. An evaluation precedes the episodes of the same line."""
    points, played = Points(), 0.0
    for metric in metrics:
        if (metric.arm, metric.seed) == (arm, seed):
            if "eval_success" in metric.values:
                points.append((played, metric.values["eval_success"]))
            played = metric.values.get("episodes", played)
    return points if played else []


def by_minutes(metrics: Sequence[Metric], times: Sequence[Mapping[str, Any]], arm: str, seed: int) -> Points:
    """Return success over minutes of training. Time that was spent twice, because of a kill, counts twice."""
    success = {
        m.step: m.values["eval_success"]
        for m in metrics
        if (m.arm, m.seed) == (arm, seed) and "eval_success" in m.values
    }
    points, minutes = dict[int, tuple[float, float]](), 0.0
    for line in times:
        if (line.get("kind"), line.get("arm"), line.get("seed")) == ("rl", arm, seed):
            minutes += float(line["seconds"]) / 60
            if line["step"] in success:
                points[line["step"]] = (minutes, success[line["step"]])
    return list(points.values())


def _svg(curves: Mapping[tuple[str, int], Points], looks: Mapping[str, Look], label: str, prefix: str) -> str:
    """Draw a line per arm and seed. A ring marks the success before RL, after imitation alone."""
    with drawing(3.9, 2.3) as (figure, axes):
        for (arm, _), points in curves.items():
            look = looks[arm]
            (line,) = axes.plot(*zip(*points, strict=True), color=look.colour, linewidth=1.4)
            if look.dashes:
                line.set_linestyle((0, [float(length) / 1.4 for length in look.dashes.split()]))
            axes.plot(*points[0], "o", ms=4, mfc="none", mec=look.colour)
        axes.axhline(1, color=MUTED, linewidth=0.6, linestyle=":")
        axes.set_ylim(-0.02, 1.04)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return to_svg(figure, prefix, f"Success on validation tasks: {label}")
