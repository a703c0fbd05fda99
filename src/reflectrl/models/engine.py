"""The engine: reading, scoring and writing for one player, on prompts that are lists of token ids.

Tokens of all rows lie one behind another, so nothing is padded. A prompt that continues what its episode's `Prefix`
holds is read from there on. A row's result does not depend on the company it is computed in, and each row draws its
randomness from a generator of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reflectrl.models.attention import CachedAttention, PackedAttention, SteppingAttention
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Block, Ids, Packing, apart, portions
from reflectrl.models.prefix import Prefix
from reflectrl.prompts import Prompt
from reflectrl.types import Sampling, UserError

CUT = 4
"""A history that does not fit is cut by multiples of a quarter of the context."""

REUSE = 16
"""Fewer kept tokens than this are not worth continuing from."""

Written = tuple[Ids, tuple[float, ...]]
"""New token ids, and their log-probabilities (nats) under the sampling distribution."""


def tokenize(lm: LanguageModel, prompt: Prompt, reserve: int = 1) -> Ids:
    """Token ids of a prompt, with room for `reserve` more in the context.

    The two parts are encoded apart, so that the history's tokens do not depend on what follows. A prompt that is too
    long loses the oldest part of its history, in pieces of a quarter of the context: were it cut to measure, every
    step would shift all that follows, and nothing that is kept could be used again. The state, the reflection and the
    actions are never cut.

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
    piece = max(1, lm.context // CUT)
    excess = max(0, len(history) - room)
    return tuple(start + history[-(-excess // piece) * piece :] + rest)


# ---- reading ---------------------------------------------------------------------------------------------------------


def packed_hidden(lm: LanguageModel, packing: Packing) -> Tensor:
    """Hidden states (N, D) of all tokens of a packing, in the order of its blocks; gradients flow."""
    alone = sum(len(block.ids) for block in packing.blocks if block.trie is None)
    lm.tally.reused += sum(n for path in packing.paths for _, n in path) - alone
    return encode(lm, packing.blocks, PackedAttention(packing))


def encode(lm: LanguageModel, blocks: Sequence[Block], attend: PackedAttention | CachedAttention) -> Tensor:
    """Hidden states (N, D) of all tokens of some blocks, in one forward pass."""
    ids = torch.tensor([token for block in blocks for token in block.ids], device=lm.device)
    places = torch.from_numpy(np.concatenate([block.places() for block in blocks]))
    hidden_ND = lm.hidden(ids, places.to(lm.device), attend)
    lm.tally.encoded += len(ids)
    lm.tally.pairs += attend.pairs
    return hidden_ND


def last_hidden(lm: LanguageModel, packing: Packing) -> Tensor:
    """Hidden state (P, D) at the last token of each prompt of a packing; gradients flow."""
    return packed_hidden(lm, packing)[torch.tensor(packing.ends(), device=lm.device)]


@torch.no_grad()
def read(lm: LanguageModel, prompts: Sequence[Ids], prefixes: Sequence[Prefix]) -> Tensor:
    """Hidden state (P, D) at the last token of each prompt; what its prefix already holds is not encoded again.

    Afterwards each prefix holds its whole prompt.
    """
    kept = [prefix.match(prompt, REUSE) for prompt, prefix in zip(prompts, prefixes, strict=True)]
    lengths = [len(prompt) - start for prompt, start in zip(prompts, kept, strict=True)]
    lm.tally.reused += sum(kept)
    parts = portions(lengths, lm.pass_tokens)
    return torch.cat([_continue(lm, prompts[rows], kept[rows], prefixes[rows]) for rows in parts])


def _continue(lm: LanguageModel, prompts: Sequence[Ids], kept: Sequence[int], prefixes: Sequence[Prefix]) -> Tensor:
    """One forward pass over what prompts have beyond the first `kept` tokens."""
    blocks = [Block(prompt[start:], start) for prompt, start in zip(prompts, kept, strict=True)]
    for prefix, prompt in zip(prefixes, prompts, strict=True):
        prefix.reserve(len(prompt))
    lengths = [len(block.ids) for block in blocks]
    hidden_ND = encode(lm, blocks, CachedAttention(prefixes, lengths))
    for prefix, prompt in zip(prefixes, prompts, strict=True):
        prefix.hold(prompt)
    return hidden_ND[torch.tensor(lengths, device=lm.device).cumsum(0) - 1]


def choice_logits(
    lm: LanguageModel, prompts: Sequence[Ids], label_ids: Sequence[int], prefixes: Sequence[Prefix] | None = None
) -> Tensor:
    """Logits (P, A) of the choice labels after each prompt: one forward pass, A rows of the LM head.

    Gradients flow where no prefixes are given.
    """
    hidden_PD = last_hidden(lm, apart(prompts)) if prefixes is None else read(lm, prompts, prefixes)
    return lm.logits(hidden_PD, torch.tensor(label_ids, device=lm.device)).float()


# ---- writing ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    lm: LanguageModel,
    prompts: Sequence[Ids],
    max_new_tokens: int | Sequence[int],
    sampling: Sampling,
    generators: Sequence[np.random.Generator],
    prefixes: Sequence[Prefix] | None = None,
) -> list[Written]:
    """Continue each prompt until end-of-text (not returned) or `max_new_tokens` (one number, or one per prompt).

    Args:
        prefixes: what each prompt's episode has kept; they hold the prompts afterwards, not what is written.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    prefixes = [Prefix() for _ in prompts] if prefixes is None else prefixes
    writer = _Writer(lm, prefixes, limits)
    hidden_PD = read(lm, prompts, prefixes)
    while True:
        chosen = draw(lm.logits(hidden_PD).float(), sampling, [generators[i] for i in writer.rows])
        if not writer.keep(*chosen):
            return writer.finished()
        hidden_PD = writer.step()


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


class _Writer:
    """The rows that are being continued."""

    def __init__(self, lm: LanguageModel, prefixes: Sequence[Prefix], limits: Sequence[int]) -> None:
        self.lm, self.prefixes, self.limits = lm, prefixes, limits
        self.rows = list(range(len(prefixes)))
        self.new: list[list[int]] = [[] for _ in self.rows]
        self.logprobs: list[list[float]] = [[] for _ in self.rows]
        self._attend: SteppingAttention | None = None

    def keep(self, tokens_R: Tensor, logprobs_R: Tensor) -> bool:
        """Record one token per running row; rows that are done leave. Returns whether any still runs."""
        end, stay = self.lm.tokenizer.eos_token_id, []
        drawn = zip(self.rows, tokens_R.tolist(), logprobs_R.tolist(), strict=True)
        for slot, (row, token, logprob) in enumerate(drawn):
            if token != end:
                self.new[row].append(token)
                self.logprobs[row].append(logprob)
                if len(self.new[row]) < self.limits[row]:
                    stay.append(slot)
        self.tokens_R = tokens_R
        if len(stay) < len(self.rows):
            self.rows = [self.rows[slot] for slot in stay]
            self._leave(torch.tensor(stay, dtype=torch.long, device=tokens_R.device))
        return bool(self.rows)

    def _leave(self, stay: Tensor) -> None:
        self.tokens_R = self.tokens_R[stay]
        if self._attend is not None and len(stay):
            self._attend.select(stay)

    def step(self) -> Tensor:
        """Hidden state (R, D) of each running row after its latest token."""
        if self._attend is None:
            running = [self.prefixes[row] for row in self.rows]
            self._attend = SteppingAttention(running, max(self.limits), self.lm.device)
        self._attend.advance(self.lm.dtype)
        hidden_RD = self.lm.hidden(self.tokens_R, self._attend.lengths - 1, self._attend)
        self.lm.tally.decoded += len(self.rows)
        self.lm.tally.pairs += self._attend.pairs
        return hidden_RD

    def finished(self) -> list[Written]:
        return [(tuple(ids), tuple(lps)) for ids, lps in zip(self.new, self.logprobs, strict=True)]
