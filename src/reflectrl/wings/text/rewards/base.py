"""What a reward component is: one number for each completion of a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from reflectrl.wings.text.samples.sample import Sample


class Component(ABC):
    """One part of a reward. Built-in ones give numbers in [0, 1]; those of a plug-in may give any finite number.

    A plug-in is a subclass that a recipe names "package.module:Class", or any class with the same three: `fingerprint`,
    `prepare` and `score`. What the recipe sets is checked against the signature of its `__init__`.
    """

    by_group: ClassVar[bool] = False
    """Whether a number may depend on the other samples of the same prompt; such numbers are not remembered."""
    folder: Path | None = None
    """Where a component by group may keep what it finds out; set before it is asked."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """Whoever has what a component has is one, so that packages can bring rewards without importing this one."""
        if cls is Component and all(hasattr(other, name) for name in ("fingerprint", "prepare", "score")):
            return True
        return NotImplemented

    @property
    def fingerprint(self) -> str:
        """Names all that the numbers depend on beside the sample; "" if they must not be kept on the disk."""
        return ""

    def prepare(self, training: Sequence[Sample]) -> None:  # noqa: B027  (most components need not see them)
        """See the training set, once, before anything is scored."""

    @abstractmethod
    def score(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample, in order.

        Only prompt, completion and meta of a sample may be looked at (a written completion has no reward yet), and a
        number must not depend on the other samples (but see `by_group`).
        """


def response_of(sample: Sample) -> str:
    """What was said, without the space that separates it from the prompt."""
    return sample.completion.strip()
