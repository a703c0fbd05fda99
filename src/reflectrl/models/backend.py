"""What players and learners ask of a language model: to read prompts, to score actions, to write texts.

Two backends answer the same calls. The plain one (`plain.py`) runs Hugging Face's forward pass, one sequence at a time:
short, right for every architecture, the reference of the tests. The packed one (`packed.py`) is the fast engine.
`model.backend` chooses; by default `proof.py` compares both when a model is loaded, and takes the packed one where it
gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from reflectrl.models.generation import DraftModel
from reflectrl.models.sharing import Ids, KVCache

Scoring = Literal["enumeration", "sum", "token", "word", "trie"]
"""How an action is scored: by its label, or by the log-probability of its text (whole, per token, per word), or by that
of its text among the legal ones (`text_scoring.py`)."""

Written = tuple[Ids, tuple[float, ...]]
"""New token ids, and their log-probabilities (nats) under the sampling distribution."""

Draw = Callable[[Tensor, Sequence[np.random.Generator]], tuple[Tensor, Tensor]]
"""One token per row (B,) of logits (B, V), and its log-probability (B,); see `players.policy.sampler`."""


class Answers(NamedTuple):
    """The actions that may follow a prompt.

    Attributes:
        ids: for each action the tokens that take it: its label's one token, or its text with end-of-text.
        words: number of words of each action's text.
    """

    ids: tuple[Ids, ...]
    words: tuple[int, ...]


@dataclass
class Counters:
    """What one player's model has computed; the numbers only grow.

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
        return Counters(**{key: value - getattr(before, key) for key, value in vars(self).items()})

    def copy(self) -> Counters:
        """The counters as they stand."""
        return replace(self)


class Backend(Protocol):
    """Reads, scores and writes with one player's model.

    Prompts are token ids; where the caller has packed them already, a `Packing` may stand for them. KV caches belong to
    live episodes: what a prompt shares with the last one that its cache has seen is not computed again, and there are
    no gradients then. The plain backend has no use for them.
    """

    def read(
        self,
        prompts: Sequence[Ids],
        at: Sequence[int] | Literal["ends", "all"] = "ends",
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Hidden states of the last layer, (M, D), after its norm.

        Args:
            at: after the last token of each prompt ("ends"), or, of a `Packing`, after each of its tokens in the order
                of its blocks ("all") or after these.
        """
        ...

    def score(
        self,
        prompts: Sequence[Ids],
        answers: Sequence[Answers],
        scoring: Scoring = "enumeration",
        caches: Sequence[KVCache] | None = None,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Logits (P, A) in float32 of each prompt's actions, and hidden states (P, D) at the prompts' ends.

        Rows of prompts with fewer than A actions end in arbitrary numbers.

        Args:
            share: whether beginnings that prompts have in common may be computed once.
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
    ) -> list[Written]:
        """Continue each prompt until end-of-text (not returned) or `max_new_tokens` (one number, or one per prompt).

        Args:
            draw: how a token is chosen.
            generators: one per prompt; a sampled token takes one number from it.
            caches: hold the prompts afterwards, not what was written.
            draft_model: guesses several tokens that one pass then checks; learns from what is written. The result is
                the same without, but for rounding.
        """
        ...

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits (N, V) of hidden states that `read` returned, or only those of some tokens, (N, A)."""
        ...
