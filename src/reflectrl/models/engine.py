"""The engine: batched decoding and choice scoring for one player, on prompts that are lists of token ids.

Rows are padded on the right: attention is causal, so padding behind a row cannot change it, and a score does not depend
on the company it is computed in. Each row draws its randomness from a generator of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from reflectrl.models.lm import LanguageModel
from reflectrl.prompts import Prompt
from reflectrl.types import Sampling, UserError

Ids = tuple[int, ...]


def tokenize(lm: LanguageModel, prompt: Prompt, reserve: int = 1) -> Ids:
    """Token ids of a prompt, with room for `reserve` more in the context.

    The two parts are encoded apart, so that the history's tokens do not depend on what follows. A prompt that is too
    long loses the oldest part of its history; the state, the reflection and the actions are never cut.

    Raises:
        UserError: what may not be cut is already longer than the context.
    """
    bos = getattr(lm.tokenizer, "bos_token_id", None)
    start = [bos] if bos is not None and bos != lm.tokenizer.eos_token_id else []
    history, rest = lm.encode(prompt.history) if prompt.history else [], lm.encode(prompt.rest)
    room = lm.context - reserve - len(start) - len(rest)
    if room < 0:
        raise UserError(
            f"{len(rest)} tokens of observation and {reserve} to be written do not fit the model's context of"
            f" {lm.context} (raise model.context, or shorten the environment's state)"
        )
    return tuple(start + history[max(0, len(history) - room) :] + rest)


def pad(rows: Sequence[Sequence[int]], value: int, device: torch.device) -> Tensor:
    """Rows of ids as one tensor (B, T), padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], device=device)


def last_hidden(lm: LanguageModel, prompts: Sequence[Ids]) -> Tensor:
    """Hidden state (N, D) at the last token of each prompt; gradients flow."""
    ids_BT = pad(prompts, lm.tokenizer.pad_token_id, lm.device)
    hidden_BTD = lm.hidden(ids_BT)
    ends = torch.tensor([len(row) - 1 for row in prompts], device=lm.device)
    return hidden_BTD[torch.arange(len(prompts), device=lm.device), ends]


def choice_logits(lm: LanguageModel, prompts: Sequence[Ids], label_ids: Sequence[int]) -> Tensor:
    """Logits (N, A) of the choice labels after each prompt: one forward pass, A rows of the LM head."""
    rows = torch.tensor(label_ids, device=lm.device)
    return lm.logits(last_hidden(lm, prompts), rows).float()


@torch.no_grad()
def generate(
    lm: LanguageModel,
    prompts: Sequence[Ids],
    max_new_tokens: int,
    sampling: Sampling,
    generators: Sequence[np.random.Generator],
) -> list[tuple[Ids, tuple[float, ...]]]:
    """Continue each prompt until end-of-text (not returned) or `max_new_tokens`.

    Returns, per prompt, the new token ids and their log-probabilities (nats) under the sampling distribution.
    """
    decoder = _Decoder(lm, len(prompts))
    hidden = decoder.start(prompts)
    for remaining in reversed(range(max_new_tokens)):
        tokens, logprobs = draw(lm.logits(hidden).float(), sampling, [generators[i] for i in decoder.rows])
        if not decoder.keep(tokens, logprobs) or not remaining:
            break
        hidden = decoder.step()
    return decoder.finished()


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


class _Decoder:
    """The key/value cache of a batch that is being continued, and the rows of it that still run."""

    def __init__(self, lm: LanguageModel, count: int) -> None:
        self.lm = lm
        self.rows = list(range(count))
        self.new: list[list[int]] = [[] for _ in self.rows]
        self.logprobs: list[list[float]] = [[] for _ in self.rows]
        self.cache: Any = DynamicCache()

    def start(self, prompts: Sequence[Ids]) -> Tensor:
        ids_BT = pad(prompts, self.lm.tokenizer.pad_token_id, self.lm.device)
        self.lengths = torch.tensor([len(row) for row in prompts], device=self.lm.device)
        self.mask = torch.arange(ids_BT.shape[1], device=self.lm.device)[None] < self.lengths[:, None]
        hidden = self.lm.hidden(ids_BT, past_key_values=self.cache, use_cache=True)
        return hidden[torch.arange(len(prompts), device=self.lm.device), self.lengths - 1]

    def keep(self, tokens: Tensor, logprobs: Tensor) -> bool:
        """Record one token per running row; rows at end-of-text leave. Returns whether any row still runs."""
        end, stay = self.lm.tokenizer.eos_token_id, []
        for slot, (row, token, logprob) in enumerate(zip(self.rows, tokens.tolist(), logprobs.tolist(), strict=True)):
            if token != end:
                self.new[row].append(token)
                self.logprobs[row].append(logprob)
                stay.append(slot)
        self.tokens = tokens
        if len(stay) < len(self.rows):
            self._shrink(torch.tensor(stay, dtype=torch.long, device=self.lm.device))
        return bool(self.rows)

    def _shrink(self, stay: Tensor) -> None:
        self.rows = [self.rows[i] for i in stay.tolist()]
        if self.rows:
            self.cache.batch_select_indices(stay)
            self.mask, self.lengths, self.tokens = self.mask[stay], self.lengths[stay], self.tokens[stay]

    def step(self) -> Tensor:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        hidden = self.lm.hidden(
            self.tokens[:, None],
            past_key_values=self.cache,
            attention_mask=self.mask,
            position_ids=self.lengths[:, None],
            use_cache=True,
        )
        self.lengths = self.lengths + 1
        return hidden[:, -1]

    def finished(self) -> list[tuple[Ids, tuple[float, ...]]]:
        return [(tuple(ids), tuple(lps)) for ids, lps in zip(self.new, self.logprobs, strict=True)]
