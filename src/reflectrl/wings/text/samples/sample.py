"""A sample, the unit of offline learning: a prompt, one completion of it, and the reward that it earned."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from reflectrl.types import UserError

PLACES = 5
"""So many places of bad rows are kept for each reason; the others are counted."""


@dataclass(frozen=True)
class Sample:
    """One completion of one prompt.

    Attributes:
        id: names the sample within its file.
        group: what samples of one prompt share; pairs and rankings are made within groups.
        prompt: all that the model reads. Training cuts what does not fit from its left, by tokens.
        completion: what it is to write, with the space that separates it from the prompt; never cut silently.
        reward: what the completion earned; finite, or NaN in samples that are still to be scored.
        components: what the reward was made of, by name, and other numbers about the completion.
        logprob: log-probability (nats, summed over tokens) under what wrote the completion; None if unknown.
        meta: whatever else is known of it, as JSON values: "knowledge" of a grounded dialogue, "head" and "relation"
            of an event; of an episode's step "instance", "step", and "options" (the completions it could choose from).
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
    """How many rows were left out for one reason, and where the first of them stand ("file:line")."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.first) < PLACES:
            self.first.append(place)


@dataclass(frozen=True)
class Samples(Sequence[Sample]):
    """What a file held: the samples in order, and by reason the rows that were left out (`skip_bad`)."""

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
        """The samples of each prompt, in order."""
        found: dict[str, list[Sample]] = {}
        for sample in self.items:
            found.setdefault(sample.group, []).append(sample)
        return found

    @property
    def ties(self) -> int:
        """How many groups of two or more samples have but one reward, and so prefer nothing."""
        return sum(tied(group) for group in self.groups().values())


def tied(group: Sequence[Sample]) -> bool:
    """Whether these are two or more samples with one reward."""
    return len(group) > 1 and all(sample.reward == group[0].reward for sample in group)


def group_of(prompt: str) -> str:
    """The group of a prompt whose data names none: 16 hexadecimal digits of its hash."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
