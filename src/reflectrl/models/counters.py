"""What a model has computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Counters:
    """Counters of one player's model; they only grow.

    Attributes:
        passes: forward passes.
        encoded: prompt tokens that went through the model.
        decoded: tokens that went through it while writing, wrong guesses included.
        drafted: those of them that were guesses.
        reused: prompt tokens that did not, because their keys and values were kept or shared.
        pairs: query-key pairs of attention, per layer and head.
        logits: entries of the language-model head that were computed.
    """

    passes: int = 0
    encoded: int = 0
    decoded: int = 0
    drafted: int = 0
    reused: int = 0
    pairs: int = 0
    logits: int = 0

    def since(self, before: Counters) -> Counters:
        """What was counted after `before` was copied."""
        then = asdict(before)
        return Counters(**{key: value - then[key] for key, value in asdict(self).items()})

    def copy(self) -> Counters:
        """The counters as they stand."""
        return Counters(**asdict(self))
