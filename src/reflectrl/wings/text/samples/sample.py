"""A sample, the unit of offline learning: a prompt, one completion of it, and the reward that it earned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

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
