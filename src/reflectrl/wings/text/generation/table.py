"""Result table of a text task: every metric of the completions, per algorithm and seed, and pooled over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import named_seed
from reflectrl.wings.text.generation.bootstrap import mean_bootstrap
from reflectrl.wings.text.generation.metrics import coverage_and_density, distinct, mean_length, meteor
from reflectrl.wings.text.samples.sample import Sample

RESAMPLES = 2000


@dataclass(frozen=True)
class TextRow:
    """Metrics of a model's completions on a split.

    Attributes:
        task: name of the task ("hha", "orders" ...).
        arm: arm that trained the model; "data" for the completions of the data.
        checkpoint: "best" or "last"; "" if the arm has only one.
        reward: mean over the completions.
        low, high: bootstrap interval over the completions. It holds for this model, not for other training seeds.
        metrics: means of the components, distinct-1/2/3, length ...
        meteor_by: METEOR's way of matching words.
    """

    task: str
    arm: str
    seed: int
    checkpoint: str
    split: str
    sampling: str
    completions: int
    reward: float
    low: float
    high: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    meteor_by: str = ""


def row_of(
    labels: Mapping[str, Any], written: Sequence[Sample], references: Mapping[str, Sequence[str]], confidence: float
) -> TextRow:
    """Return the row of scored completions.

    Args:
        labels: task, arm, seed, checkpoint, split and sampling.
        references: completions of the data by group of the prompt.
    """
    rewards = [sample.reward for sample in written]
    rng = np.random.default_rng(named_seed("bootstrap", *labels.values()))
    low, high = mean_bootstrap([rewards], confidence, rng, RESAMPLES)
    metrics, meteor_by = metrics_of(written, references)
    return TextRow(
        **labels,
        completions=len(rewards),
        reward=float(np.mean(rewards)),
        low=low,
        high=high,
        metrics=metrics,
        meteor_by=meteor_by,
    )


def metrics_of(written: Sequence[Sample], references: Mapping[str, Sequence[str]]) -> tuple[dict[str, float], str]:
    """Return every metric of scored completions, and METEOR's way of matching words.

    Args:
        written: completions with their components.
        references: completions of the data by group of the prompt. METEOR is left out if there are none.
    """
    texts = [sample.completion for sample in written]
    names = dict.fromkeys(name for sample in written for name in sample.components if name != "tokens")
    metrics = {name: float(np.mean([s.components[name] for s in written if name in s.components])) for name in names}
    metrics |= {f"distinct-{n}": distinct(texts, n) for n in (1, 2, 3)}
    metrics["length"] = mean_length(texts)
    kind = ""
    if any(references.get(sample.group) for sample in written):
        metrics["meteor"], kind = meteor(texts, [references.get(sample.group, ()) for sample in written])
    grounded = [(s.meta["knowledge"], s.completion) for s in written if isinstance(s.meta.get("knowledge"), str)]
    if grounded:
        metrics["coverage"], metrics["density"] = np.mean(
            [coverage_and_density(*pair) for pair in grounded], axis=0
        ).tolist()
    return metrics, kind


@dataclass(frozen=True)
class TextLine:
    """Metrics of an arm, pooled over its seeds.

    Attributes:
        reward: mean of the seeds' means.
        low, high: Student's t interval over seeds. With a single seed, it is the bootstrap interval over completions,
            which says nothing about other seeds.
        interval: kind of the interval: "t over seeds" or "bootstrap over completions".
        metrics: means over the seeds.
    """

    task: str
    arm: str
    checkpoint: str
    split: str
    sampling: str
    seeds: int
    completions: int
    reward: float
    low: float
    high: float
    interval: str
    metrics: Mapping[str, float]
    meteor_by: str


def pooled(rows: Sequence[TextRow], confidence: float) -> list[TextLine]:
    """Pool rows into a line per task, split, sampling, arm and checkpoint, in order of first occurrence."""
    groups: dict[tuple[str, ...], list[TextRow]] = {}
    for row in rows:
        groups.setdefault((row.task, row.split, row.sampling, row.arm, row.checkpoint), []).append(row)
    return [_line(group, confidence) for group in groups.values()]


def _line(rows: Sequence[TextRow], confidence: float) -> TextLine:
    first = rows[0]
    over_seeds = mean_interval([row.reward for row in rows], confidence)
    low, high = over_seeds or (first.low, first.high)
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    return TextLine(
        task=first.task,
        arm=first.arm,
        checkpoint=first.checkpoint,
        split=first.split,
        sampling=first.sampling,
        seeds=len(rows),
        completions=sum(row.completions for row in rows),
        reward=float(np.mean([row.reward for row in rows])),
        low=low,
        high=high,
        interval="t over seeds" if over_seeds else "bootstrap over completions",
        metrics={name: float(np.mean([row.metrics[name] for row in rows if name in row.metrics])) for name in names},
        meteor_by=", ".join(dict.fromkeys(row.meteor_by for row in rows if row.meteor_by)),
    )


PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return percentiles of the values by name ("p50" ...), their "mean", and the share above 0 as "positive"."""
    array = np.asarray(values, dtype=float)
    quantiles = {f"p{p}": float(value) for p, value in zip(PERCENTILES, np.percentile(array, PERCENTILES), strict=True)}
    return quantiles | {"mean": float(array.mean()), "positive": float((array > 0).mean())}
