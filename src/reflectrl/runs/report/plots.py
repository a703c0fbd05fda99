"""The plots: learning curves with a band over seeds, and success by stage with intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reflectrl.runs.report.data import Metric, Score, in_page_order
from reflectrl.runs.report.svg import INK, MUTED, Look, drawing, to_svg

POINTS = 80
"""Largest number of points of a curve. If there are more updates, they are averaged in windows."""
KINDS = {
    "rl": "Reinforcement learning of the policy",
    "offline": "Offline learning of the policy",
    "offline_value": "Value of the reference",
    "offline_critic": "Critic of the logged steps",
    "sft_reflection": "Supervised fine-tuning of the reflector",
    "sft_policy": "Supervised fine-tuning of the policy, with reflections",
    "sft": "Supervised fine-tuning of the policy, without reflections",
}
NAMES = {
    "success": "Success in training",
    "eval_success": "Success on validation tasks",
    "eval_reward": "Mean reward on validation prompts",
    "return": "Return",
    "loss": "Training loss",
    "eval_loss": "Validation loss",
    "accuracy": "Accuracy in training",
    "eval_accuracy": "Accuracy on validation rows",
    "entropy": "Entropy of the choice (nats)",
    "kl": "KL divergence from the policy before training (nats)",
    "clip_fraction": "Share of clipped importance ratios",
    "explained_variance": "Explained variance of the value",
    "value_loss": "Value loss",
    "critic_loss": "Critic loss",
    "critic_eval_loss": "Critic loss on held-out tasks",
    "grad_norm": "Gradient norm",
    "length": "Tokens of a completion",
    "reflection_length": "Tokens of a reflection",
    "distinct_reflections": "Different reflections of an update",
    "reflection_entropy": "Entropy of a reflection's token (nats)",
    "reflection_kl": "KL divergence from the reflector before training (nats per token)",
    "reflection_clip_fraction": "Share of clipped importance ratios of reflections",
    "scaled_reward_std": "Standard deviation of the scaled rewards",
    "lag": "Updates between the weights that play and those that learn",
    "ratio_mean": "Mean importance ratio before an update",
    "ratio_max": "Greatest importance ratio before an update",
    "ratio_clipped": "Share of importance ratios outside the clipping range before an update",
    "labels_missing": "Share of labels that servers did not return",
    "requests_per_second": "Requests to servers per second",
}
SHARES = ("success", "eval_success", "accuracy", "eval_accuracy")

Curve = Mapping[int, Sequence[float]]
"""Step → the values of all seeds with a value at this step."""


@dataclass(frozen=True)
class Plot:
    """A picture and its title."""

    title: str
    svg: str


@dataclass(frozen=True)
class CurveSection:
    """The plots of a kind of training.

    Attributes:
        arms: names of the curves.
        window: number of steps averaged into a point.
        shared: True if one of the curves is a training that several arms may share.
    """

    title: str
    arms: tuple[str, ...]
    plots: tuple[Plot, ...]
    window: int
    shared: bool


# ---- learning curves -----------------------------------------------------------------------------------------------


def curve_sections(metrics: Sequence[Metric], looks: Mapping[str, Look]) -> list[CurveSection]:
    """Return a section per kind of training that logged any of the known numbers, reinforcement learning first."""
    kinds = dict.fromkeys([*KINDS, *(metric.kind for metric in metrics)])
    sections = []
    for i, kind in enumerate(kinds):
        section = _section(kind, [metric for metric in metrics if metric.kind == kind], looks, f"curves-{i}-")
        if section.plots:
            sections.append(section)
    return sections


def _section(kind: str, metrics: Sequence[Metric], looks: Mapping[str, Look], prefix: str) -> CurveSection:
    window = window_of(metric.step for metric in metrics)
    arms = in_page_order([metric.arm for metric in metrics])
    changes = stage_changes(metrics)
    plots = []
    for i, (name, title) in enumerate(NAMES.items()):
        curves = {}
        for arm in arms:
            curves[arm] = curve([metric for metric in metrics if metric.arm == arm], name, window)
        if any(curves.values()):
            plots.append(Plot(title, _curve_svg(curves, name, looks, changes, f"{prefix}{i}-")))
    shared = any(metric.shared for metric in metrics)
    return CurveSection(KINDS.get(kind, kind), tuple(arms), tuple(plots), window, shared)


def window_of(steps: Iterable[int]) -> int:
    """Return the number of steps to average into a point, so that a curve has at most about `POINTS` points."""
    distinct = sorted(set(steps))
    if len(distinct) <= POINTS:
        return 1
    return -(-(distinct[-1] - distinct[0] + 1) // POINTS)


def curve(metrics: Iterable[Metric], name: str, window: int = 1) -> Curve:
    """Return a metric over the steps, averaged per window and seed.

    If a step was logged twice, the last value counts.
    """
    logged = {(m.seed, m.step): m.values[name] for m in metrics if name in m.values}
    windows: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (seed, step), value in logged.items():
        windows[step // window * window + window // 2][seed].append(value)  # drawn at the middle of its window
    averaged: dict[int, Sequence[float]] = {}
    for step, seeds in sorted(windows.items()):
        averaged[step] = [sum(values) / len(values) for values in seeds.values()]
    return averaged


def stage_changes(metrics: Iterable[Metric]) -> dict[int, str]:
    """Return step → the curriculum stage that begins there; {} if there is only one, or if arms or seeds differ."""
    runs: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for metric in metrics:
        starts = runs[metric.arm, metric.seed]
        if metric.stage:
            starts[metric.stage] = min(metric.step, starts.get(metric.stage, metric.step))
    first, *others = list(runs.values()) or [{}]
    if len(first) < 2 or any(starts != first for starts in others):
        return {}
    return {step: stage for stage, step in first.items()}


def _curve_svg(
    curves: Mapping[str, Curve], name: str, looks: Mapping[str, Look], changes: Mapping[int, str], prefix: str
) -> str:
    """Draw a line per arm (mean over seeds) with a band (lowest to highest seed). Dotted lines mark new stages."""
    with drawing(3.3, 2.1) as (figure, axes):
        for arm, points in curves.items():
            _draw_curve(axes, looks[arm], points)
        for step, stage in changes.items():
            if step > min(changes):
                axes.axvline(step, color=MUTED, linewidth=0.7, linestyle=":")
            axes.text(step, 1.02, stage, transform=axes.get_xaxis_transform(), fontsize=7)
        if name in SHARES:
            axes.set_ylim(-0.02, 1.02)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f} %"))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.margins(x=0.02)
        return to_svg(figure, prefix, NAMES[name])


def _draw_curve(axes: Axes, look: Look, points: Curve) -> None:
    if not points:
        return
    steps, seeds = list(points), list(points.values())
    axes.fill_between(steps, list(map(min, seeds)), list(map(max, seeds)), color=look.colour, alpha=0.16, linewidth=0)
    means = [sum(values) / len(values) for values in seeds]
    (line,) = axes.plot(steps, means, color=look.colour, linewidth=1.6, marker="o" if len(steps) == 1 else "", ms=3)
    if look.dashes:
        line.set_linestyle((0, [float(length) / line.get_linewidth() for length in look.dashes.split()]))


# ---- success by stage ----------------------------------------------------------------------------------------------


def stage_plots(summary: Sequence[Score], rows: Sequence[Score], looks: Mapping[str, Look]) -> list[Plot]:
    """Return a plot per split and sampling: a group of bars per stage, a bar per arm."""
    plots = []
    for i, (split, sampling) in enumerate(dict.fromkeys((score.split, score.sampling) for score in summary)):
        mine = [score for score in summary if (score.split, score.sampling) == (split, sampling)]
        seeds = [row for row in rows if (row.split, row.sampling) == (split, sampling)]
        plots.append(Plot(f"{split} · {sampling}", _bars_svg(mine, seeds, looks, f"bars-{i}-")))
    return plots


def _bars_svg(scores: Sequence[Score], rows: Sequence[Score], looks: Mapping[str, Look], prefix: str) -> str:
    """Draw horizontal bars with whiskers (the interval), a ring per seed, and the number beside them."""
    stages = list(dict.fromkeys(score.stage for score in scores))
    arms = in_page_order([score.arm for score in scores])
    height = len(arms) + 1.8
    with drawing(3.8, 0.19 * height * len(stages) + 0.3) as (figure, axes):
        positions = {(stage, arm): i * height + j for i, stage in enumerate(stages) for j, arm in enumerate(arms)}
        for i, stage in enumerate(stages):
            axes.text(0, i * height - 1.0, stage, fontsize=9, fontweight="bold", color=INK, va="center")
        for (stage, arm), y in positions.items():
            _draw_bar(axes, y, looks[arm], [score for score in scores if (score.stage, score.arm) == (stage, arm)])
            seeds = [row.success for row in rows if (row.stage, row.arm) == (stage, arm)]
            if len(seeds) > 1:
                axes.plot(seeds, [y] * len(seeds), "o", ms=2.8, mfc="none", mec=INK, mew=0.7, clip_on=False)
        axes.set_yticks(list(positions.values()), [arm for _, arm in positions])
        axes.set_ylim(height * len(stages) - 1.4, -1.8)
        axes.set_xlim(0, 1.19)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.grid(visible=False, axis="y")
        axes.spines[["left", "bottom"]].set_visible(False)
        return to_svg(figure, prefix, "Success by stage")


def _draw_bar(axes: Axes, y: float, look: Look, scores: Sequence[Score]) -> None:
    if not scores:
        return
    mean = sum(score.success for score in scores) / len(scores)
    axes.barh(y, mean, height=0.7, color=look.colour, alpha=0.65, linewidth=0)
    low, high = scores[0].low, scores[0].high
    if low is not None and high is not None and len(scores) == 1:  # unpooled rows have no common interval
        axes.errorbar(mean, y, xerr=[[max(0, mean - low)], [max(0, high - mean)]], color=INK, capsize=2, linewidth=1)
    axes.text(1.19, y, f"{100 * mean:.1f}", ha="right", va="center")
