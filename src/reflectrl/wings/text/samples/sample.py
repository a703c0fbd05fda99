"""Sample, the unit of offline learning: a prompt, one completion, and its reward."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from reflectrl.core.types import UserError

PLACES = 5
"""Number of places of bad rows that are kept per reason. Further rows are only counted."""


@dataclass(frozen=True)
class Sample:
    """A prompt with one completion and its reward.

    Attributes:
        id: unique name of the sample within its file.
        group: name shared by the samples of a prompt. Pairs and rankings are made within groups.
        prompt: the model's full input. Training truncates long prompts on the left, by tokens.
        completion: the target text, with the space that separates it from the prompt; never truncated silently.
        reward: reward of the completion: finite, or NaN for samples that are not scored yet.
        components: parts of the reward by name, and other numbers about the completion.
        logprob: log-probability (nats, summed over tokens) under the model that wrote the completion; None if unknown.
        meta: further JSON values: "knowledge" of a grounded dialogue; "head" and "relation" of an event; "instance",
            "step" and "options" (the completions to choose from) of an episode's step.
    """

    id: str
    group: str
    prompt: str
    completion: str
    reward: float
    components: Mapping[str, float] = field(default_factory=dict, hash=False)
    logprob: float | None = None
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass
class Skipped:
    """Number of rows that were left out for a reason, and the places of the first few ("file:line")."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, location: str) -> None:
        self.count += 1
        if len(self.first) < PLACES:
            self.first.append(location)


@dataclass(frozen=True)
class Samples(Sequence[Sample]):
    """Samples of a file in order, and the rows that were left out with `skip_bad`, by reason."""

    items: tuple[Sample, ...] = ()
    skipped: Mapping[str, Skipped] = field(default_factory=dict, hash=False)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sample, ...]: ...
    def __getitem__(self, index: int | slice) -> Sample | tuple[Sample, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.items)

    def groups(self) -> dict[str, list[Sample]]:
        """Return the samples of each group, in order."""
        groups: dict[str, list[Sample]] = {}
        for sample in self.items:
            groups.setdefault(sample.group, []).append(sample)
        return groups

    @property
    def ties(self) -> int:
        """Number of groups whose samples (two or more) all have the same reward, and so give no preference."""
        return sum(tied(group) for group in self.groups().values())


def tied(group: Sequence[Sample]) -> bool:
    """Return whether a group has two or more samples, all with the same reward."""
    return len(group) > 1 and all(sample.reward == group[0].reward for sample in group)


def imitable(sample: Sample) -> bool:
    """Return whether a completion is worth imitating. All are, unless the row's "sft_index" names another one."""
    sft_index = sample.meta.get("sft_index")
    return sft_index is None or sample.id.rpartition(".")[2] == str(sft_index)


def group_of(prompt: str) -> str:
    """Return the default group of a prompt: 16 hexadecimal digits of its hash."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def summary(samples: Samples) -> list[str]:
    """Return a readable summary, line by line. Lengths are in characters, since tokens depend on the model."""
    groups = samples.groups()
    several = sum(len(group) > 1 for group in groups.values())
    rewards = [sample.reward for sample in samples if not math.isnan(sample.reward)]
    return [
        f"{len(samples)} samples of {len(groups)} prompts; {several} prompts have several, {samples.ties} of them tied",
        f"rewards: {_spread(rewards) if rewards else 'none yet'}",
        f"prompts, characters: {_spread([len(sample.prompt) for sample in samples])}",
        f"completions, characters: {_spread([len(sample.completion) for sample in samples])}",
        *skipped_lines("skipped", samples.skipped),
    ]


def skipped_lines(what: str, skipped: Mapping[str, Skipped]) -> list[str]:
    """Return a line per reason for which rows were left out, with the first places."""
    lines = list[str]()
    for reason, rows in skipped.items():
        lines.append(f"{what}: {rows.count} rows, {reason} ({', '.join(rows.first)})")
    return lines


def _spread(values: Sequence[float]) -> str:
    """Format the smallest value, the median, the 95th percentile and the largest value."""
    ranked = sorted(values)
    quantiles = (("least", 0.0), ("median", 0.5), ("95 %", 0.95), ("most", 1.0))
    parts = list[str]()
    for name, share in quantiles:
        value = ranked[round(share * (len(ranked) - 1))]
        parts.append(f"{name} {value:.6g}")
    return ", ".join(parts)


BOUNDS = "bounds"
"""Key in a sample's `meta` for the two rewards that were mapped to 0 and 1."""


LOGIT = "logit"
"""Key in a sample's `components` for the reward before the sigmoid."""


def through_sigmoid(sample: Sample) -> Sample:
    """Return the sample with the sigmoid of its reward, which is a reward model's raw output."""
    small = math.exp(-abs(sample.reward))  # the exponential of a large number would overflow
    reward = small / (1 + small)
    if sample.reward >= 0:
        reward = 1 / (1 + small)
    return replace(sample, reward=reward, components={**sample.components, LOGIT: sample.reward})


def to_unit(samples: Samples, bounds: tuple[float, float] | None = None) -> Samples:
    """Map the rewards of samples by (reward - low) / (high - low), and keep `[low, high]` in their meta.

    Args:
        bounds: (low, high); by default the lowest and the highest reward of the samples. With other bounds, rewards may
            fall outside of [0, 1]. They are not clipped.

    Raises:
        UserError: the bounds are not an interval, or the rewards were already mapped.
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
