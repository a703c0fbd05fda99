"""Rewards on the scale from 0 to 1, by maps that can be undone."""

from __future__ import annotations

import math
from dataclasses import replace

from reflectrl.types import UserError
from reflectrl.wings.text.samples.sample import Sample, Samples

BOUNDS = "bounds"
"""Where a sample's `meta` keeps the two rewards that became 0 and 1."""


LOGIT = "logit"
"""Where a sample's `components` keep the reward that went through the sigmoid."""


def through_sigmoid(sample: Sample) -> Sample:
    """The sample with the sigmoid of its reward, which is a reward model's number."""
    small = math.exp(-abs(sample.reward))
    reward = (1 if sample.reward >= 0 else small) / (1 + small)
    return replace(sample, reward=reward, components={**sample.components, LOGIT: sample.reward})


def to_unit(samples: Samples, bounds: tuple[float, float] | None = None) -> Samples:
    """The samples with their rewards mapped by (reward - low) / (high - low), and `[low, high]` in their meta.

    Args:
        bounds: (low, high); by default the lowest and the highest reward that there are. With those of other samples,
            rewards may fall outside of [0, 1]; they are not cut.

    Raises:
        UserError: the bounds are no interval, or the rewards were mapped before.
    """
    if any(BOUNDS in sample.meta for sample in samples):
        raise UserError("these rewards were mapped to [0, 1] before")
    rewards = [sample.reward for sample in samples]
    low, high = bounds or (min(rewards), max(rewards))
    if not (low < high and math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"rewards cannot be mapped from [{low}, {high}] to [0, 1]: the bounds must be two, lower first")
    mapped = (
        replace(sample, reward=(sample.reward - low) / (high - low), meta={**sample.meta, BOUNDS: [low, high]})
        for sample in samples
    )
    return replace(samples, items=tuple(mapped))
