"""The reward of an answer to a question of reasoning-gym."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from reflectrl.types import UserError
from reflectrl.wings.reasoning_gym.questions import KEY, package, score


class ReasoningGymScore:
    """A component of rewards: what the package says of a completion, in [0, 1].

    It has the three methods that make a component of text tasks, which this wing does not import.

    Args:
        after: only what stands behind the last occurrence of this text is the answer, where it occurs ("####" for
            models that think aloud first).
    """

    def __init__(self, after: str = "") -> None:
        package()
        self.after = after

    @property
    def fingerprint(self) -> str:
        """The package's version decides, and where the answer begins."""
        return f"reasoning_gym {version('reasoning_gym')} {self.after}"

    def prepare(self, training: Sequence[Any]) -> None:
        """Nothing needs to be seen beforehand."""

    def score(self, samples: Sequence[Any]) -> list[float]:
        """One number per sample; UserError if a sample's meta does not say which question it answers."""
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Any) -> float:
        origin = sample.meta.get(KEY)
        if not isinstance(origin, dict):
            raise UserError(f"reward reasoning_gym: sample {sample.id!r} does not say in its meta which question it is")
        answer = sample.completion.rpartition(self.after)[2] if self.after else sample.completion
        return score(origin, sample.prompt, answer)
