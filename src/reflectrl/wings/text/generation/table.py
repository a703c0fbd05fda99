"""Result table of a text task: every metric of the completions, per algorithm and seed, and pooled over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reflectrl.core.evaluation import ATTEMPTS, Attempt, attempt_counts, rates_at
from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import named_seed
from reflectrl.wings.text.generation.bootstrap import mean_bootstrap
from reflectrl.wings.text.generation.generate import one_per_prompt
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
        low, high: bootstrap interval over the prompts. It holds for this model, not for other training seeds.
        metrics: means of the components, distinct-1/2/3, length ..., and with several completions per prompt pass@k
            and maj@k.
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
    labels: Mapping[str, Any],
    written: Sequence[Sample],
    references: Mapping[str, Sequence[str]],
    confidence: float,
    pass_reward: float | None = None,
) -> TextRow:
    """Return the row of scored completions.

    Args:
        labels: task, arm, seed, checkpoint, split and sampling.
        written: completions, equally many per prompt.
        references: completions of the data by group of the prompt.
        pass_reward: reward from which a completion passes; None leaves out pass@k and maj@k.
    """
    by_prompt: dict[str, list[Sample]] = {}
    for sample in written:
        by_prompt.setdefault(sample.group, []).append(sample)
    rewards = [sample.reward for sample in written]
    # Completions of one prompt are not independent, so prompts are resampled.
    means = [float(np.mean([sample.reward for sample in samples])) for samples in by_prompt.values()]
    rng = np.random.default_rng(named_seed("bootstrap", *labels.values()))
    low, high = mean_bootstrap([means], confidence, rng, RESAMPLES)
    metrics, meteor_by = metrics_of(written, references)
    if pass_reward is not None:
        metrics |= pass_rates(list(by_prompt.values()), pass_reward)
    return TextRow(
        **labels,
        completions=len(rewards),
        reward=float(np.mean(rewards)),
        low=low,
        high=high,
        metrics=metrics,
        meteor_by=meteor_by,
    )


ROUNDING = 1e-9
"""Tolerance of the comparison with `eval.pass_reward`, since a reward is a weighted sum of floats."""


def pass_rates(prompts: Sequence[Sequence[Sample]], pass_reward: float) -> dict[str, float]:
    """Return pass@k and maj@k for k = 1, 2, 4, ... up to all completions of a prompt, averaged over prompts.

    maj@k counts equal completions as votes (Wang et al. 2023, "Self-Consistency", arXiv 2203.11171, with the whole text
    as the answer). Both are estimated as for agents (`core.evaluation`).

    Args:
        prompts: scored completions of each prompt.
        pass_reward: reward from which a completion passes.
    """
    tasks: list[list[Attempt]] = []
    for samples in prompts:
        tasks.append([(sample.completion.strip(), sample.reward >= pass_reward - ROUNDING) for sample in samples])
    return rates_at(attempt_counts(min(map(len, tasks))), tasks)


def is_attempt_rate(name: str, beginnings: tuple[str, ...] = ATTEMPTS) -> bool:
    """Tell whether a metric is pass@k or maj@k, for some k."""
    beginning, _, count = name.partition("@")
    return f"{beginning}@" in beginnings and count.isdecimal()


def metrics_of(written: Sequence[Sample], references: Mapping[str, Sequence[str]]) -> tuple[dict[str, float], str]:
    """Return the metrics of scored completions that need no threshold, and METEOR's way of matching words.

    The components are means over all completions. The metrics of the text take each prompt's first completion: the
    share of distinct n-grams falls with the size of the corpus, and other arms may have fewer completions.

    Args:
        written: completions with their components.
        references: completions of the data by group of the prompt. METEOR is left out if there are none.
    """
    names = dict.fromkeys(name for sample in written for name in sample.components if name != "tokens")
    metrics = {name: float(np.mean([s.components[name] for s in written if name in s.components])) for name in names}
    written = one_per_prompt(written)
    texts = [sample.completion for sample in written]
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
