"""A language model of this machine in an endpoint's place: asked like a server, without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reflectrl.config import ModelConfig
from reflectrl.endpoints.client import Ask, without_thinking
from reflectrl.models.load import load_model
from reflectrl.players.policy import sampler
from reflectrl.plugins import one_line
from reflectrl.types import Sampling, UserError, named_seed

LONGEST = 8192
"""Most tokens of a conversation with its answer, where the model can take so many."""


class LocalModel:
    """Answers conversations with a model that is loaded here. Equal questions are computed once.

    Args:
        source: a folder, a GGUF file, a name that `reflectrl data model` knows, or that of a model on this machine.
        batch: how many questions are computed together.

    Raises:
        UserError: nothing loadable is there, or its tokenizer has no chat template.
    """

    def __init__(self, source: str, batch: int) -> None:
        self.source, self.batch = source, batch
        self.lm = load_model(source, ModelConfig(source=source, chat="on", context=LONGEST))
        self._known: dict[str, str] = {}

    def complete_all(self, asks: Sequence[Ask], tick: Callable[[int], None] = lambda done: None) -> list[str]:
        """The answers, in order; see `Endpoint.complete_all`.

        Raises:
            UserError: a conversation does not fit the model's context, or its chat template cannot hold it.
        """
        keys = [repr((list(ask.messages), ask[1:])) for ask in asks]
        missing = {key: ask for key, ask in zip(keys, asks, strict=True) if key not in self._known}
        left = list(missing.items())
        for start in range(0, len(left), self.batch):
            part = left[start : start + self.batch]
            self._known |= zip((key for key, _ in part), self._written([ask for _, ask in part]), strict=True)
            tick(len(asks) - len(left) + start + len(part))
        return [self._known[key] for key in keys]

    def _written(self, asks: Sequence[Ask]) -> list[str]:
        prompts = [self._prompt(ask) for ask in asks]
        generators = [np.random.default_rng(named_seed("local", ask.sample, *ids)) for ask, ids in
                      zip(asks, prompts, strict=True)]  # fmt: skip
        draw = sampler(Sampling(asks[0].temperature))
        with self.lm.playing():
            found = self.lm.backend.write(prompts, [ask.max_tokens for ask in asks], draw, generators)
        return [without_thinking(self.lm.tokenizer.decode(ids, skip_special_tokens=True)) for ids, _ in found]

    def _prompt(self, ask: Ask) -> tuple[int, ...]:
        """The conversation as the model's chat template has it; instructions join the first question if they must."""
        first, *rest = ask.messages
        folded = [{**rest[0], "content": f"{first['content']}\n\n{rest[0]['content']}"}, *rest[1:]] if rest else [first]
        problem: Exception | None = None
        for messages in (list(ask.messages), folded):
            try:
                text: Any = self.lm.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
                )
                break
            except Exception as error:  # a template is a program, which raises what it likes
                problem = error
        else:
            assert problem is not None
            raise UserError(f"model {self.source!r}: its chat template fails: {one_line(problem)[:200]}") from problem
        ids = self.lm.encode(text)
        if len(ids) + ask.max_tokens > self.lm.context:
            fits = f"{self.lm.context} tokens, of which {ask.max_tokens} (max_tokens) are for the answer"
            raise UserError(f"model {self.source!r}: a conversation has {len(ids)} tokens; its context has {fits}")
        return tuple(ids)
