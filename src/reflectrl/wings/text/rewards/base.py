"""Interface of reward components, which give one number to each completion of a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from reflectrl.wings.text.samples.sample import Sample


class Component(ABC):
    """One part of a reward. Built-in components give numbers in [0, 1]; a plug-in may give any finite number.

    A plug-in is a subclass that a recipe names "package.module:Class", or any class with the same three members:
    `fingerprint`, `prepare` and `score`. The recipe's settings are checked against the signature of its `__init__`.
    """

    by_group: ClassVar[bool] = False
    """True if a score may depend on the other samples of the same prompt. Such scores are not cached."""
    folder: Path | None = None
    """Folder in which a component with `by_group` may cache its own results. It is set before the first scoring."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        """Accept any class with a component's members, so that plug-ins need not import this package."""
        if cls is Component and all(hasattr(other, name) for name in ("fingerprint", "prepare", "score")):
            return True
        return NotImplemented

    @property
    def fingerprint(self) -> str:
        """Identifier of everything besides the sample that scores depend on; "" if they must not be cached on disk."""
        return ""

    def prepare(self, training: Sequence[Sample]) -> None:  # noqa: B027  (most components need not see them)
        """Fit to the training set. Called once, before anything is scored."""

    @abstractmethod
    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return one number per sample, in order.

        A score may depend only on the sample's prompt, completion and meta, since a new completion has no reward yet.
        It must not depend on other samples, except with `by_group`.
        """


def response_of(sample: Sample) -> str:
    """Return the completion without the space that separates it from the prompt."""
    return sample.completion.strip()
