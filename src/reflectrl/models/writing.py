"""Writing: rows of prompts are continued, each until its own end, by draws from each row's own generator.

Where drafts are given, a pass carries the latest token of each row and a guess at what follows it; the draws then go
from token to token as they would without, and what the model has computed for the guess is used as far as they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from reflectrl.models.attention import WritingAttention, writing_attention
from reflectrl.models.drafts import END, Draft, Drafts, spelled
from reflectrl.models.engine import read
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids
from reflectrl.models.plain import Continuation
from reflectrl.models.prefix import Prefix
from reflectrl.types import Sampling

Written = tuple[Ids, tuple[float, ...]]
"""New token ids, and their log-probabilities (nats) under the sampling distribution."""

Draw = Callable[[Tensor, Sampling, Sequence[np.random.Generator]], tuple[Tensor, Tensor]]
"""One token per row (B,) of logits (B, V), and its log-probability (B,)."""


def draw(logits_BV: Tensor, sampling: Sampling, generators: Sequence[np.random.Generator]) -> tuple[Tensor, Tensor]:
    """One token per row (B,) and its log-probability (B,); each sampled row takes one number from its generator."""
    if sampling.greedy:
        logp_BV = logits_BV.log_softmax(-1)
        tokens = logp_BV.argmax(-1)
        return tokens, logp_BV.gather(-1, tokens[:, None])[:, 0]
    logp_BV = nucleus(logits_BV / sampling.temperature, sampling.top_p).log_softmax(-1)
    precise = torch.float32 if logits_BV.device.type == "mps" else torch.float64  # Apple's GPUs know no float64
    uniform = torch.tensor([g.random() for g in generators], device=logits_BV.device, dtype=precise)
    cumulative_BV = logp_BV.to(precise).exp().cumsum(-1)
    tokens = torch.searchsorted(cumulative_BV, (uniform * cumulative_BV[:, -1])[:, None], right=True)[:, 0]
    tokens = tokens.clamp(max=logits_BV.shape[-1] - 1)
    return tokens, logp_BV.gather(-1, tokens[:, None])[:, 0]


def nucleus(logits_BV: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of tokens whose probability reaches `top_p`; the others become -inf."""
    if top_p >= 1:
        return logits_BV
    ordered, index = logits_BV.sort(-1, descending=True)
    probability = ordered.softmax(-1)
    ordered = ordered.masked_fill(probability.cumsum(-1) - probability >= top_p, -torch.inf)
    return torch.empty_like(logits_BV).scatter_(-1, index, ordered)


@torch.no_grad()
def generate(
    lm: LanguageModel,
    prompts: Sequence[Ids],
    max_new_tokens: int | Sequence[int],
    sampling: Sampling,
    generators: Sequence[np.random.Generator],
    prefixes: Sequence[Prefix] | None = None,
    drafts: Drafts | None = None,
    draw: Draw = draw,
) -> list[Written]:
    """Continue each prompt until end-of-text (not returned) or `max_new_tokens` (one number, or one per prompt).

    Args:
        prefixes: what each prompt's episode has kept; they hold the prompts afterwards, not what is written.
        drafts: what this model has written before, to guess from; learns what is written now. The result is the same
            without, but for the rounding of matrix products, which differs with their shape.
        draw: how a token is chosen.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    prefixes = [Prefix() for _ in prompts] if prefixes is None else prefixes
    end = lm.tokenizer.eos_token_id
    rows = writing = [_Row(*one, end) for one in zip(prompts, limits, generators, strict=True)]
    if not lm.shortcuts.packed:
        return [_write_plainly(lm, row, sampling, draw) for row in rows]
    room = max(limits, default=0)
    hidden_ND = read(lm, prompts, prefixes, room)
    attend = writing_attention(prefixes, room, lm.device)
    while writing:
        _draw(lm.logits(hidden_ND).float(), writing, sampling, draw)
        if drafts is not None:
            _learn(drafts, writing)
        stay = [slot for slot, row in enumerate(writing) if not row.done]
        attend.keep([row.kept for row in writing], stay)
        writing = [writing[slot] for slot in stay]
        if writing:
            hidden_ND = _advance(lm, attend, writing, drafts)
    return [(tuple(row.ids), tuple(row.logprobs)) for row in rows]


def _write_plainly(lm: LanguageModel, row: _Row, sampling: Sampling, draw: Draw) -> Written:
    """One text, token by token, by the model's own forward pass."""
    lm.activate()
    text, new = Continuation(lm.core, lm.shortcuts.cache), row.prompt
    while not row.done:
        hidden_D = text.add(new)
        lm.counters.passes += 1
        lm.counters.decoded += len(new)
        _draw(lm.logits(hidden_D[None]).float(), [row], sampling, draw)
        new = tuple(row.ids[-1:])
    return tuple(row.ids), tuple(row.logprobs)


class _Row:
    """A text that is being written.

    Attributes:
        ids, logprobs: what is written.
        pending: the tokens that the latest pass has read: the latest one that was written, and a draft.
        kept: how many of them are written by now.
    """

    def __init__(self, prompt: Ids, limit: int, generator: np.random.Generator, end: int | None) -> None:
        self.prompt, self.limit, self.generator, self.end = prompt, limit, generator, end
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.ended = False
        self.draft = Draft()
        self.pending, self.kept = [prompt[-1]], 0

    @property
    def done(self) -> bool:
        return self.ended or len(self.ids) >= self.limit

    @cached_property
    def asked(self) -> str:
        """The prompt's tokens as characters."""
        return spelled(self.prompt)

    def take(self, token: int, logprob: float) -> bool:
        """Write down what was drawn; returns whether the draft says the same, so that the next draw is at hand."""
        self.kept += 1
        self.ended = token == self.end
        if not self.ended:
            self.ids.append(token)
            self.logprobs.append(logprob)
        return not self.done and self.kept < len(self.pending) and self.pending[self.kept] == token

    def go_on(self, drafts: Drafts | None) -> list[int]:
        """The tokens of the next pass."""
        if drafts is not None:
            self.draft = drafts.draft(self.asked, spelled(self.ids), self.limit - len(self.ids) - 1)
        self.pending, self.kept = [self.ids[-1], *map(ord, self.draft.tokens)], 0
        return self.pending


def _draw(logits_NV: Tensor, rows: Sequence[_Row], sampling: Sampling, draw: Draw) -> None:
    """Each row draws the token after its latest, and the next for as long as its draft agrees with what it draws."""
    starts = [0, *accumulate(len(row.pending) for row in rows)]
    going, depth = list(range(len(rows))), 0
    while going:
        at = [starts[slot] + depth for slot in going]
        logits_BV = logits_NV if len(at) == len(logits_NV) else logits_NV[at]
        drawn = draw(logits_BV, sampling, [rows[slot].generator for slot in going])
        taken = zip(going, *(part.tolist() for part in drawn), strict=True)
        going = [slot for slot, token, logprob in taken if rows[slot].take(token, logprob)]
        depth += 1


def _learn(drafts: Drafts, rows: Sequence[_Row]) -> None:
    """Which drafts held, and the texts that have ended."""
    for row in rows:
        drafts.check(row.draft, row.kept - 1)
        if row.done:
            drafts.learn(spelled(row.ids) + END * row.ended)


def _advance(lm: LanguageModel, attend: WritingAttention, rows: Sequence[_Row], drafts: Drafts | None) -> Tensor:
    """Hidden states (N, D) behind the pending tokens of all rows."""
    pending = [row.go_on(drafts) for row in rows]
    places_N = attend.advance([len(tokens) for tokens in pending])
    ids_N = torch.tensor([token for tokens in pending for token in tokens], device=lm.device)
    hidden_ND = lm.hidden(ids_N, places_N, attend)
    lm.counters.decoded += len(ids_N)
    lm.counters.drafted += len(ids_N) - len(rows)
    lm.counters.pairs += attend.pairs
    return hidden_ND
