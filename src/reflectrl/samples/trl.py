"""Samples as the rows that TRL's trainers read: supervised (prompt, completion), DPO and its like, KTO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from reflectrl.plugins import suggestion
from reflectrl.samples.sample import Sample, Samples
from reflectrl.types import UserError

TrlForm = Literal["prompt-completion", "preference", "unpaired"]
FORMS: tuple[str, ...] = get_args(TrlForm)


def to_trl(samples: Sequence[Sample], form: str, threshold: float | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a form, in the order of the samples; prompts and completions keep every space.

    - "prompt-completion": a row per sample, with its reward, which TRL does not look at.
    - "preference": of each group the best and the worst completion, the second best and the second worst, and so on,
      as "chosen" and "rejected" with "score_chosen" and "score_rejected". Equal rewards and equal completions make no
      pair; no sample is in two.
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
        ranked = sorted(group, key=lambda sample: -sample.reward)
        for chosen, rejected in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            if chosen.reward > rejected.reward and chosen.completion != rejected.completion:
                yield {
                    "prompt": chosen.prompt,
                    "chosen": chosen.completion,
                    "rejected": rejected.completion,
                    "score_chosen": chosen.reward,
                    "score_rejected": rejected.reward,
                }


def _labelled(samples: Sequence[Sample], threshold: float) -> Iterator[dict[str, Any]]:
    for sample in samples:
        yield {"prompt": sample.prompt, "completion": sample.completion, "label": sample.reward > threshold}
