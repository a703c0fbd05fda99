"""The reliability diagram: how often the choices of each arm were right, over the probability that it gave them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from reflectrl.runs.report.data import Score, in_page_order
from reflectrl.runs.report.plots import Plot
from reflectrl.runs.report.svg import MUTED, Look, drawing, to_svg

MOST_ARMS = 8
"""Largest number of arms in a diagram. More could not be told apart."""


def reliability_plots(rows: Sequence[Score], looks: Mapping[str, Look]) -> list[Plot]:
    """Return a diagram per split in which some arm's decisions were judged. Bins of all seeds are drawn as points."""
    plots = []
    for index, split in enumerate(dict.fromkeys(row.split for row in rows if row.reliability)):
        points = defaultdict[str, list[tuple[float, float]]](list)
        for row in rows:
            if row.split == split:
                points[row.arm] += [(confidence, accuracy) for _, confidence, accuracy in row.reliability]
        arms = [arm for arm in in_page_order(list(points)) if points[arm]][:MOST_ARMS]
        plots.append(Plot(split, _svg({arm: sorted(points[arm]) for arm in arms}, looks, f"reliability-{index}-")))
    return plots


def _svg(points: Mapping[str, Sequence[tuple[float, float]]], looks: Mapping[str, Look], prefix: str) -> str:
    with drawing(3.4, 3.0) as (figure, axes):
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=":")
        for arm, bins in points.items():
            confidence, accuracy = zip(*bins, strict=True)
            axes.plot(confidence, accuracy, "o-", ms=3, linewidth=1, color=looks[arm].colour, label=arm, clip_on=False)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share of right choices")
        axes.legend(frameon=False, fontsize=7, loc="upper left")
        return to_svg(figure, prefix, "Reliability diagram")
