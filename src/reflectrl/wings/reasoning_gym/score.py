"""The reward of an answer to a question of reasoning-gym."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from reflectrl.core.types import UserError
from reflectrl.wings.reasoning_gym.questions import KEY, package, score


class ReasoningGymScore:
    """A component of rewards: the package's score of a completion, in [0, 1].

    It has the three methods of a component of text tasks, without importing that class.

    Args:
        after: marker before the answer, such as "####" for models that think aloud first. If it occurs, only the text
            after its last occurrence is scored.
    """

    def __init__(self, after: str = "") -> None:
        package()
        self.after = after

    @property
    def fingerprint(self) -> str:
        """The package's version and the marker, on which scores depend."""
        return f"reasoning_gym {version('reasoning_gym')} {self.after}"

    def prepare(self, training: Sequence[Any]) -> None:
        """Do nothing: scores do not depend on the training samples."""

    def score(self, samples: Sequence[Any]) -> list[float]:
        """Return one score per sample. Raise UserError if a sample's meta does not name the origin of its question."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Any) -> float:
        origin = sample.meta.get(KEY)
        if not isinstance(origin, dict):
            raise UserError(f"reward reasoning_gym: sample {sample.id!r} does not say in its meta which question it is")
        answer = sample.completion.rpartition(self.after)[2] if self.after else sample.completion
        return score(origin, sample.prompt, answer)
