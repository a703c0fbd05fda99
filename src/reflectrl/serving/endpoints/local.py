"""A language model on this machine in place of an endpoint, asked in the same way but without a server."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from reflectrl.core.config import ModelConfig
from reflectrl.core.plugins import one_line
from reflectrl.core.prompts.messages import folded, said
from reflectrl.core.prompts.rendering import render
from reflectrl.core.prompts.tokens import defused
from reflectrl.core.terminal import note_once
from reflectrl.core.types import Sampling, UserError, named_seed
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.players import sampler
from reflectrl.serving.endpoints.answers import Answer, Ending, cut_off, without_thinking
from reflectrl.serving.endpoints.client import Ask
from reflectrl.serving.endpoints.config import Refused
from reflectrl.serving.endpoints.journal import Cost, Journal

LONGEST = 8192
"""Largest number of tokens of a conversation with its answer, if the model's context allows it."""


@lru_cache(maxsize=1)
def _loaded(source: str) -> LanguageModel:
    """Load a model. The last one is kept, because a run asks for it again for every split and sampling."""
    return load_model(source, ModelConfig(source=source, chat="on", context=LONGEST))


class LocalModel:
    """Answer conversations with a model that is loaded here, as an `Endpoint` does with a model behind an address.

    Answers are kept in the journal like a server's. So equal questions are computed once, and a run that was killed
    goes on without asking again. Random draws depend only on the question and on `Ask.sample`.

    Args:
        source: a folder, a GGUF file, a name that `reflectrl data model` knows, or the name of a model on this machine.
        batch: number of questions that are computed together.
        journal: stores answers and holds the budget, in which its tokens count (they cost no money).
        refused: handling of conversations that do not fit the context; "stop" raises an error.

    Attributes:
        where, name: names for messages: the source.
        endings: number of answers so far that are not complete, by their end.

    Raises:
        UserError: there is no model that can be loaded, or its tokenizer has no chat template.
    """

    def __init__(self, source: str, batch: int, journal: Journal | None = None, refused: Refused = "stop") -> None:
        self.source = self.where = self.name = source
        self.batch, self.journal = batch, Journal() if journal is None else journal
        self.refused, self.endings = refused, Counter[str]()
        self.lm = _loaded(source)

    def complete_all(self, asks: Sequence[Ask], progress: Callable[[int], None] = lambda done: None) -> list[Answer]:
        """Return the answers, in order; see `Endpoint.complete_all`.

        Raises:
            UserError: a conversation does not fit the model's context and `refused` is "stop", its chat template cannot
                hold it, or the budget is spent. Answers so far are kept.
        """
        keys = [self.key(ask) for ask in asks]
        left = [pair for pair in dict(zip(keys, asks, strict=True)).items() if self.journal.answer(pair[0]) is None]
        left = [pair for pair in left if not self._refuses(*pair)]
        done = len(asks) - len(left)
        for part in self._batches(left):
            self._answer(part)
            done += len(part)
            progress(done)
        # (An empty answer is false, but has an end.)
        answers = [Answer() if (answer := self.journal.answer(key)) is None else answer for key in keys]
        self.endings.update(answer.ending for answer in answers if answer.ending)
        return answers

    def estimate(self, asks: Sequence[Ask]) -> Cost:
        """Estimate the largest cost of these questions: tokens and requests, no money."""
        left = [ask for ask in asks if self.journal.answer(self.key(ask)) is None]
        return Cost(sum(len(self._prompt(ask)) for ask in left), sum(ask.max_tokens for ask in left), 0.0, len(left))

    def key(self, ask: Ask) -> str:
        """Return the identity of a question: a hash of the model, all words and all settings."""
        text = json.dumps([self.source, list(ask.messages), *ask[1:]])
        return hashlib.sha256(text.encode()).hexdigest()

    def _batches(self, left: Sequence[tuple[str, Ask]]) -> Iterator[list[tuple[str, Ask]]]:
        """Yield batches of questions. All questions of a batch have the same temperature."""
        for temperature in dict.fromkeys(ask.temperature for _, ask in left):
            same = [pair for pair in left if pair[1].temperature == temperature]
            yield from (same[start : start + self.batch] for start in range(0, len(same), self.batch))

    def _answer(self, part: Sequence[tuple[str, Ask]]) -> None:
        """Compute answers as far as the budget allows, and keep them."""
        prompts, numbers = [self._prompt(ask) for _, ask in part], list[str]()
        for (_, ask), ids in zip(part, prompts, strict=True):
            if (number := self.journal.reserve(Cost(len(ids), ask.max_tokens))) is None:
                break
            numbers.append(number)
        written = self._written([ask for _, ask in part[: len(numbers)]], prompts[: len(numbers)]) if numbers else []
        for number, (key, ask), ids, (text, count) in zip(numbers, part, prompts, written, strict=False):
            ending: Ending = "cut" if count == ask.max_tokens else ""  # an answer that ends by itself is shorter
            if ending:
                note_once(f"model {self.source!r}: {cut_off(count, silent=not text)}")
            self.journal.settle(number, Cost(len(ids), count), key, Answer(text, ending))
        if len(numbers) < len(part):
            raise UserError(
                f"model {self.source!r}: the budget is spent ({self.journal.refused}); all answers are kept:"
                " raise it and run again"
            )

    def _written(self, asks: Sequence[Ask], prompts: Sequence[tuple[int, ...]]) -> list[tuple[str, int]]:
        """Return the text and the number of tokens of each answer."""
        generators = [
            np.random.default_rng(named_seed("local", ask.sample, *ids)) for ask, ids in zip(asks, prompts, strict=True)
        ]
        draw = sampler(Sampling(asks[0].temperature))
        with self.lm.playing():
            written = self.lm.backend.write(prompts, [ask.max_tokens for ask in asks], draw, generators)
        decode = self.lm.tokenizer.decode
        return [(without_thinking(decode(ids, skip_special_tokens=True)), len(ids)) for ids, _ in written]

    def _prompt(self, ask: Ask) -> tuple[int, ...]:
        """Render the conversation by the model's chat template. Instructions join the first question if they must."""
        tokenizer = self.lm.tokenizer
        conversation = [said(message["role"], defused(tokenizer, message["content"])) for message in ask.messages]
        problem: Exception | None = None
        for messages in (conversation, folded(conversation)):
            try:
                text = render(tokenizer, messages)
                break
            except Exception as error:  # a template is a program, which may raise anything
                problem = error
        else:
            assert problem is not None
            raise UserError(f"model {self.source!r}: its chat template fails: {one_line(problem)[:200]}") from problem
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    def _refuses(self, key: str, ask: Ask) -> bool:
        """Return whether a conversation does not fit the model's context, and keep that as its answer.

        Raises:
            UserError: it does not fit, and that is to end the run; or no conversation fits beside such an answer.
        """
        if ask.max_tokens >= self.lm.context:
            raise UserError(
                f"model {self.source!r}: its context has {self.lm.context} tokens, but max_tokens is {ask.max_tokens}"
            )
        count = len(self._prompt(ask))
        if count + ask.max_tokens <= self.lm.context:
            return False
        fits = f"{self.lm.context} tokens, of which {ask.max_tokens} (max_tokens) are for the answer"
        why = f"model {self.source!r}: a conversation has {count} tokens; its context has {fits}"
        if self.refused == "stop":
            raise UserError(f"{why}; a smaller `history` of the player or teacher shortens it")
        note_once(f"{why}; the episode counts as {self.refused}")
        self.journal.settle("", Cost(requests=0), key, Answer("", "refused"))
        return True
