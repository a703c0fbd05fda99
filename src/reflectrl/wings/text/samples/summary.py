"""What a file of samples holds, in a few lines: how many, how long, how rewarded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reflectrl.wings.text.samples.sample import Samples, Skipped


def summary(samples: Samples) -> list[str]:
    """Lines for people. Lengths are in characters: how many tokens that is depends on the model."""
    groups = samples.groups()
    many = sum(len(group) > 1 for group in groups.values())
    rewards = [sample.reward for sample in samples if not math.isnan(sample.reward)]
    return [
        f"{len(samples)} samples of {len(groups)} prompts; {many} prompts have several, {samples.ties} of them tied",
        f"rewards: {_spread(rewards) if rewards else 'none yet'}",
        f"prompts, characters: {_spread([len(sample.prompt) for sample in samples])}",
        f"completions, characters: {_spread([len(sample.completion) for sample in samples])}",
        *skipped_lines("skipped", samples.skipped),
    ]


def skipped_lines(what: str, skipped: Mapping[str, Skipped]) -> list[str]:
    """A line per reason for which rows are missing, with the first places."""
    return [f"{what}: {one.count} rows, {reason} ({', '.join(one.first)})" for reason, one in skipped.items()]


def _spread(values: Sequence[float]) -> str:
    """Smallest, median, 95th percentile and largest."""
    ranked = sorted(values)
    places = (("least", 0.0), ("median", 0.5), ("95 %", 0.95), ("most", 1.0))
    return ", ".join(f"{name} {ranked[round(share * (len(ranked) - 1))]:.6g}" for name, share in places)
