"""What players and learners ask of a language model: to read prompts, to score actions, and to write texts.

Several backends answer the same calls. The plain one (`plain.py`) runs Hugging Face's forward pass, one sequence at a
time: it is short, right for every architecture, and the reference of the tests. The packed one (`packed.py`) is the
fast engine. `model.backend` chooses. By default, `proof.py` compares the two when a model is loaded, and the packed one
is used if it gives the same numbers.
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
"""How an action is scored: by its label ("enumeration"); by the log-probability of its text (the "sum", or per "token"
or "word"); or by that of its text among the legal ones ("trie"; see `text_scoring.py`)."""

Written = tuple[Ids, tuple[float, ...]]
"""New token ids, and their log-probabilities (nats) under the sampling distribution."""

Draw = Callable[[Tensor, Sequence[np.random.Generator]], tuple[Tensor, Tensor]]
"""One token per row (B,) of logits (B, V), and its log-probability (B,); see `players.policy.sampler`."""


class Answers(NamedTuple):
    """The possible answers to a prompt, one per action.

    Attributes:
        ids: the tokens of each answer: the one token of the action's label, or the action's text with end-of-text.
        words: the number of words of each action's text.
    """

    ids: tuple[Ids, ...]
    words: tuple[int, ...]


@dataclass
class Counters:
    """How much one player's model has computed; the numbers only grow.

    Attributes:
        passes: forward passes.
        encoded: prompt tokens that went through the model.
        decoded: tokens that went through the model while writing, wrong guesses included.
        drafted: those of the decoded tokens that were guesses.
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
        """The counts since `before`, an earlier copy."""
        return Counters(**{key: value - getattr(before, key) for key, value in vars(self).items()})

    def copy(self) -> Counters:
        """A copy of the counters as they are now."""
        return replace(self)


class Backend(Protocol):
    """Reads, scores and writes with one player's model.

    Prompts are token ids; callers that have packed them already pass the `Packing` instead. KV caches belong to live
    episodes: the beginning that a prompt shares with the previous prompt in its cache is not computed again. With
    caches there are no gradients. The plain backend ignores caches.
    """

    def read(
        self,
        prompts: Sequence[Ids],
        at: Sequence[int] | Literal["ends", "all"] = "ends",
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Hidden states of the last layer, (M, D), after its norm.

        Args:
            at: which tokens. "ends" means the last token of each prompt. For a `Packing`, "all" means every token in
                the order of its blocks, and a list of numbers selects some of these.
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

        If a prompt has fewer than A actions, the rest of its row is arbitrary.

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
            caches: afterwards they hold the prompts, but not what was written.
            draft_model: guesses several tokens, which a single pass then checks; it learns from what is written.
                Without it the result is the same, apart from rounding.
        """
        ...

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits (N, V) for hidden states that `read` returned, or (N, A) for the tokens `rows` only."""
        ...
