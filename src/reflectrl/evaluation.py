"""Arms × tasks × seeds → results with intervals.

A row is one arm on one split, stage and sampling with one seed; its interval is Wilson's over the episodes. The summary
pools the seeds: its success is the mean over seeds, and its interval the wider of Student's t over the seeds' rates and
Wilson's over all episodes, so that neither the spread between trainings nor that between episodes is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reflectrl.envs.base import TextEnv
from reflectrl.statistics import mean_interval, wilson
from reflectrl.types import Episode

Row = dict[str, Any]
KEYS = ("arm", "env", "split", "stage", "sampling")


def rows_of(episodes: Sequence[Episode], env: TextEnv, confidence: float) -> list[Row]:
    """Rows of the episodes of one arm, split, stage, sampling and seed.

    The episodes' own stage gives one row; where it is the environment's last stage, each milestone gives another, whose
    success is that its event happened, and so does each group of tasks that the environment names. No episodes give no
    rows.
    """
    if not episodes:
        return []
    first = episodes[0]
    shared = {**first.provenance, "env": first.task.env, "split": first.task.split}
    stage = first.task.stage
    wins = {stage: [episode.success for episode in episodes]}
    if stage == env.stages[-1]:
        for event, milestone in env.milestones.items():
            wins[milestone] = [event in episode.events for episode in episodes]
    ordered = sorted(wins, key=lambda name: env.stages.index(name) if name in env.stages else -1)
    rows = [_row(shared, name, wins[name], episodes, confidence) for name in ordered]
    groups: dict[str, list[Episode]] = {}
    for episode in episodes if stage == env.stages[-1] else ():
        if (name := env.group(episode.task)) is not None:
            groups.setdefault(name, []).append(episode)
    for name, group in groups.items():
        rows.insert(-1, _row(shared, name, [episode.success for episode in group], group, confidence))
    return rows


def _row(shared: Mapping[str, Any], stage: str, won: list[bool], episodes: Sequence[Episode], confidence: float) -> Row:
    low, high = wilson(sum(won), len(won), confidence)
    return {
        **{key: shared[key] for key in ("arm", "env", "split")},
        "stage": stage,
        "sampling": shared["sampling"],
        "seed": shared["seed"],
        "episodes": len(won),
        "success": sum(won) / len(won),
        "low": low,
        "high": high,
        "return": _mean(episode.total_reward for episode in episodes),
        "steps": _mean(len(episode.steps) for episode in episodes),
        "steps_to_success": _mean(len(episode.steps) for episode, w in zip(episodes, won, strict=True) if w),
    }


def summarise(rows: Iterable[Row], confidence: float) -> list[Row]:
    """One row per arm, environment, split, stage and sampling, pooled over the seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    return [_pooled(key, group, confidence) for key, group in groups.items()]


def _pooled(key: tuple[Any, ...], group: list[Row], confidence: float) -> Row:
    episodes = sum(row["episodes"] for row in group)
    low, high = wilson(round(sum(row["success"] * row["episodes"] for row in group)), episodes, confidence)
    over_seeds = mean_interval([row["success"] for row in group], confidence)
    if over_seeds is not None:
        low, high = max(0.0, min(low, over_seeds[0])), min(1.0, max(high, over_seeds[1]))
    names = ("success", "return", "steps", "steps_to_success")
    means = {name: _mean(row[name] for row in group if row[name] is not None) for name in names}
    pooled = {**dict(zip(KEYS, key, strict=True)), "seeds": len(group), "episodes": episodes}
    return {**pooled, "success": means["success"], "low": low, "high": high, **means}


def _mean(values: Iterable[float]) -> float | None:
    """The mean; None of nothing (an arm that never wins has no steps to success)."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
