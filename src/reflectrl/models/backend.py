"""Interface of players and learners to a language model: read prompts, score actions, and write texts.

Several backends answer the same calls. The plain one (`plain.py`) runs Hugging Face's forward pass, one sequence at a
time. It is short, correct for every architecture, and the reference in the tests. The packed one (`packed.py`) is the
fast engine. `model.backend` selects one. By default, `verification.py` compares the two when a model is loaded, and the
packed one is used if it gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from reflectrl.models.generation import DraftModel
from reflectrl.models.sharing import Ids, KVCache

Scoring = Literal["enumeration", "sum", "token", "word", "trie", "options"]
"""Method of scoring an action. "enumeration" takes the logit of its label. "sum", "token" and "word" take the
log-probability of its text: the sum, or the mean per token or word. "trie" takes the log-probability of its text among
the texts of the legal actions (see `text_scoring.py`). "options" takes a learned score of its text (`options.py`)."""

Completion = tuple[Ids, tuple[float, ...]]
"""New token ids, and their log-probabilities (nats) under the sampling distribution."""

Draw = Callable[[Tensor, Sequence[np.random.Generator]], tuple[Tensor, Tensor]]
"""(logits (B, V), a generator per row) -> one token per row (B,) and its log-probability (B,).

See `models.players.sampler`.
"""


class Candidates(NamedTuple):
    """The possible answers to a prompt, one per action.

    Attributes:
        ids: the tokens of each answer: the one token of the action's label, the action's text with end-of-text, or the
            text alone if its last token is scored ("options").
        words: the number of words of each action's text.
    """

    ids: tuple[Ids, ...]
    words: tuple[int, ...]


@dataclass
class Counters:
    """Amount of computation by one player's model so far. The counts never decrease.

    Attributes:
        passes: forward passes.
        encoded: prompt tokens that went through the model.
        decoded: tokens that went through the model while writing, wrong guesses included.
        drafted: decoded tokens that were guesses.
        reused: prompt tokens that were not computed, because their keys and values were cached or shared.
        pairs: query-key pairs of attention, per layer and head.
        logits: logits that were computed.
    """

    passes: int = 0
    encoded: int = 0
    decoded: int = 0
    drafted: int = 0
    reused: int = 0
    pairs: int = 0
    logits: int = 0

    def since(self, before: Counters) -> Counters:
        """Return the counts since `before`, an earlier copy."""
        return Counters(**{key: value - getattr(before, key) for key, value in vars(self).items()})

    def copy(self) -> Counters:
        """Return a copy of the current counts."""
        return replace(self)


class Backend(Protocol):
    """Engine that reads, scores and writes with one player's model.

    Prompts are token ids. Callers that have packed them already pass the `Packing` instead. KV caches belong to live
    episodes: the prefix that a prompt shares with the previous prompt in its cache is not computed again. With caches
    there are no gradients. The plain backend ignores caches.
    """

    def read(
        self,
        prompts: Sequence[Ids],
        at: Sequence[int] | Literal["ends", "all"] = "ends",
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Return hidden states (M, D) of the last layer, after the final norm.

        Args:
            at: selected tokens. "ends" means the last token of each prompt. For a `Packing`, "all" means every token
                in the order of its blocks, and a list of indices selects some of these.
        """
        ...

    def score(
        self,
        prompts: Sequence[Ids],
        candidates: Sequence[Candidates],
        scoring: Scoring = "enumeration",
        caches: Sequence[KVCache] | None = None,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return logits (P, A) in float32 of each prompt's actions, and hidden states (P, D) at the prompts' ends.

        If a prompt has fewer than A actions, the rest of its row is arbitrary.

        Args:
            share: compute the common prefixes of prompts only once, if the backend can.
        """
        ...

    def write(
        self,
        prompts: Sequence[Ids],
        max_new_tokens: int | Sequence[int],
        draw: Draw,
        generators: Sequence[np.random.Generator],
        caches: Sequence[KVCache] | None = None,
        draft_model: DraftModel | None = None,
    ) -> list[Completion]:
        """Continue each prompt until end-of-text (not returned) or `max_new_tokens` (one number, or one per prompt).

        Args:
            draw: function that chooses the next tokens.
            generators: one per prompt; each sampled token takes one number from it.
            caches: afterwards they hold the prompts, but not the new tokens.
            draft_model: guesses several tokens, which a single pass then checks. It learns from the texts written.
                The result is the same without it, apart from rounding.
        """
        ...

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return logits (N, V) for hidden states from `read`, or logits (N, A) of the tokens `rows` only."""
        ...
