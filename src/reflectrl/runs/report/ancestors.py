"""Learning curves of a policy that was loaded from another run (`--load`), and that run's own before it.

The numbers of the ancestors are copied into `ancestors.json` of the new run when it begins. So its report needs no
other folder, which may have moved or been removed by then.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.core.config.folders import replacing, writing
from reflectrl.runs.report.data import ANCESTORS, Ancestor, Metric, Run

RL = "rl"
"""Kind of the metrics that are continued, which is online RL."""


class Start(NamedTuple):
    """Point at which a curve begins: the updates and episodes before it."""

    updates: int = 0
    episodes: float = 0.0

    def after(self, ancestor: Ancestor) -> Start:
        """Return the point at which the curve after this ancestor's begins."""
        return Start(self.updates + ancestor.updates, self.episodes + ancestor.episodes)


# ---- the copy ------------------------------------------------------------------------------------------------------


def copy_ancestors(source: Run, arm: str, seed: int, policy: str, folder: Path) -> None:
    """Copy the learning curve of an arm, and of its own ancestors, into the folder of a run that loads its policy.

    Writes nothing if that policy has learned nothing by online RL.

    Args:
        source: run whose policy is loaded.
        policy: path of the loaded policy, as in the recipe of the new run.
        folder: folder of the new run.

    Raises:
        UserError: the file cannot be written.
    """
    metrics = curve_of(source, arm, seed)
    if not metrics:
        return
    times = []
    for line in source.times:
        is_own = (line.get("kind"), line.get("arm"), line.get("seed")) == (RL, arm, seed)
        if is_own and {"step", "seconds"} <= line.keys():
            times.append(line)
    lineage = (*source.ancestors, Ancestor(source.name, arm, seed, metrics, tuple(times)))
    path = folder / ANCESTORS
    with writing(path), replacing(path) as file:
        file.write(json.dumps({"policy": policy, "ancestors": [_plain(ancestor) for ancestor in lineage]}) + "\n")


def _plain(ancestor: Ancestor) -> dict[str, Any]:
    metrics = [{"kind": RL, "step": metric.step, "stage": metric.stage, **metric.values} for metric in ancestor.metrics]
    times = [{"step": line["step"], "seconds": line["seconds"]} for line in ancestor.times]
    return {"run": ancestor.run, "arm": ancestor.arm, "seed": ancestor.seed, "metrics": metrics, "times": times}


# ---- curves --------------------------------------------------------------------------------------------------------


def curve_of(run: Run, arm: str, seed: int) -> tuple[Metric, ...]:
    """Return the metrics of an arm's online RL."""
    return tuple(metric for metric in run.metrics if (metric.kind, metric.arm, metric.seed) == (RL, arm, seed))


def with_ancestors(run: Run) -> Run:
    """Return the run with its ancestors' curves of online RL before its own.

    Every arm and seed began from the same policy, so each gets the same beginning. Its own curve goes on at the
    ancestors' last update and episode.
    """
    if not run.ancestors:
        return run
    curves = dict.fromkeys((metric.arm, metric.seed) for metric in run.metrics if metric.kind == RL)
    metrics, times, start = list[Metric](), list[Mapping[str, Any]](), Start()
    for ancestor in run.ancestors:
        for arm, seed in curves:
            renamed = [dataclasses.replace(metric, arm=arm, seed=seed) for metric in ancestor.metrics]
            metrics += shifted(renamed, start)
            times += [{**line, "arm": arm, "seed": seed} for line in _shifted_times(ancestor.times, start)]
        start = start.after(ancestor)
    metrics += shifted(run.metrics, start)
    times += _shifted_times(run.times, start)
    return dataclasses.replace(run, metrics=tuple(metrics), times=tuple(times))


def shifted(metrics: Sequence[Metric], start: Start) -> list[Metric]:
    """Return the metrics, with online RL moved to where its curve begins."""
    moved = []
    for metric in metrics:
        if metric.kind == RL:
            values = dict(metric.values)
            if "episodes" in values:
                values["episodes"] += start.episodes
            metric = dataclasses.replace(metric, step=metric.step + start.updates, values=values)
        moved.append(metric)
    return moved


def _shifted_times(times: Sequence[Mapping[str, Any]], start: Start) -> list[Mapping[str, Any]]:
    moved = []
    for line in times:
        if line.get("kind") == RL and isinstance(line.get("step"), int):
            line = {**line, "step": line["step"] + start.updates}
        moved.append(line)
    return moved


def is_curve_of(ancestor: Ancestor, run: Run) -> bool:
    """Return whether an ancestor is this run, wherever its folder is now: they have the same metrics."""
    return curve_of(run, ancestor.arm, ancestor.seed) == ancestor.metrics


def start_among(run: Run, runs: Sequence[Run]) -> Start:
    """Return where a run's curve begins in a plot of several runs: behind its ancestors, as far as they are drawn."""
    start = Start()
    for ancestor in reversed(run.ancestors):
        if not any(is_curve_of(ancestor, other) for other in runs):
            break
        start = start.after(ancestor)
    return start


def caption(run: Run) -> str:
    """Say which part of the curves belongs to which ancestor; "" if there are none."""
    parts, start = [], Start()
    for ancestor in run.ancestors:
        start = start.after(ancestor)
        about = f"{ancestor.run} ({ancestor.arm}, seed {ancestor.seed})"
        parts.append(f"up to update {start.updates} (episode {start.episodes:.0f}), it is that of {about}")
    if not parts:
        return ""
    return f"The curve begins before this run, whose policy was loaded (--load): {'; '.join(parts)}."
