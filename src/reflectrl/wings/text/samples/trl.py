"""Samples as the rows that TRL's trainers read: supervised (prompt, completion), DPO and its like, KTO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from reflectrl.plugins import suggestion
from reflectrl.types import UserError
from reflectrl.wings.text.samples.sample import Sample, Samples

TrlForm = Literal["prompt-completion", "preference", "unpaired"]
FORMS: tuple[str, ...] = get_args(TrlForm)


def to_trl(samples: Sequence[Sample], form: str, threshold: float | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a form, in the order of the samples; prompts and completions keep every space.

    - "prompt-completion": a row per sample, with its reward, which TRL does not look at.
    - "preference": of each group the best completion against every one that earned less, with "score_chosen" and
      "score_rejected": the pairs from which our own DPO learns. A completion that is there several times earned the
      mean.
    - "unpaired": a row per sample, whose "label" says whether its reward is above `threshold`.

    Args:
        threshold: of "unpaired"; None is the mean reward.

    Raises:
        UserError: there is no such form, or a sample that has no reward yet.
    """
    if unscored := [sample.id for sample in samples if math.isnan(sample.reward)]:
        raise UserError(f"{len(unscored)} samples have no reward yet, the first being {unscored[0]!r}")
    if form == "preference":
        return _pairs(samples)
    if form == "unpaired":
        mean = sum(sample.reward for sample in samples) / max(1, len(samples))
        return _labelled(samples, mean if threshold is None else threshold)
    if form == "prompt-completion":
        return ({"prompt": one.prompt, "completion": one.completion, "reward": one.reward} for one in samples)
    raise UserError(f"unknown form {form!r}{suggestion(form, FORMS)}")


def _pairs(samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    for group in Samples(tuple(samples)).groups().values():
        earned: dict[str, list[float]] = {}
        for sample in group:
            earned.setdefault(sample.completion, []).append(sample.reward)
        means = {completion: sum(rewards) / len(rewards) for completion, rewards in earned.items()}
        best = max(means, key=lambda completion: means[completion])
        for other, score in means.items():
            if score < means[best]:
                pair = {"prompt": group[0].prompt, "chosen": best, "rejected": other}
                yield {**pair, "score_chosen": means[best], "score_rejected": score}


def _labelled(samples: Sequence[Sample], threshold: float) -> Iterator[dict[str, Any]]:
    for sample in samples:
        yield {"prompt": sample.prompt, "completion": sample.completion, "label": sample.reward > threshold}
