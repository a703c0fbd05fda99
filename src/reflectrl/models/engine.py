"""The engine: reading and scoring for one player, on prompts that are lists of token ids (`writing.py` writes).

Tokens of all rows lie one behind another, so nothing is padded. A prompt that continues what its episode's `Prefix`
holds is read from there on. A row's result does not depend on the company it is computed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from reflectrl.models.attention import CachedAttention, PackedAttention
from reflectrl.models.lines import encode_lines
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Block, Ids, Packing, apart, portions
from reflectrl.models.plain import plain_hidden
from reflectrl.models.prefix import Prefix
from reflectrl.prompts import Prompt
from reflectrl.types import UserError

CUT = 4
"""A history that does not fit is cut by multiples of a quarter of the context."""

REUSE = 16
"""Fewer kept tokens than this are not worth continuing from."""


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
    history = encode_lines(lm.tokenizer, prompt.history) if prompt.history else []
    rest = lm.encode(prompt.rest)
    room = lm.context - reserve - len(start) - len(rest)
    if room < 0:
        raise UserError(
            f"{len(rest)} tokens of observation and {reserve} to be written do not fit the model's context of"
            f" {lm.context} (raise model.context, or shorten the environment's state)"
        )
    piece = max(1, lm.context // CUT)
    excess = max(0, len(history) - room)
    return tuple(start + history[-(-excess // piece) * piece :] + rest)


def packed_hidden(lm: LanguageModel, packing: Packing, at: Sequence[int] | None = None) -> Tensor:
    """Hidden states (N, D) of the tokens of a packing, in the order of its blocks; gradients flow.

    Args:
        at: only these tokens' are asked for, in this order.
    """
    if not lm.shortcuts.packed:
        return _plain(lm, packing, at)
    alone = sum(len(block.ids) for block in packing.blocks if block.trie is None)
    lm.counters.reused += sum(n for path in packing.paths for _, n in path) - alone
    return encode(lm, packing.blocks, PackedAttention(packing), at)


def _plain(lm: LanguageModel, packing: Packing, at: Sequence[int] | None) -> Tensor:
    """The same by the model's own forward pass, block by block, each with what stands before it."""
    lm.activate()
    lm.counters.passes += len(packing.blocks)
    lm.counters.encoded += sum(block.start + len(block.ids) for block in packing.blocks)
    hidden_ND = plain_hidden(lm.core, packing)
    return hidden_ND if at is None else hidden_ND[torch.tensor(at, device=hidden_ND.device)]


def encode(
    lm: LanguageModel,
    blocks: Sequence[Block],
    attend: PackedAttention | CachedAttention,
    at: Sequence[int] | None = None,
) -> Tensor:
    """Hidden states (N, D) of the tokens of some blocks, in one forward pass: of all, or of those `at` some indices."""
    ids = torch.tensor([token for block in blocks for token in block.ids], device=lm.device)
    places = torch.from_numpy(np.concatenate([block.places() for block in blocks]))
    wanted, order = (None, None) if at is None else torch.tensor(at).unique(return_inverse=True)
    hidden_WD = lm.hidden(ids, places.to(lm.device), attend, None if wanted is None else wanted.to(lm.device))
    lm.counters.encoded += len(ids)
    lm.counters.pairs += attend.pairs
    return hidden_WD if order is None else hidden_WD[order.to(lm.device)]


def last_hidden(lm: LanguageModel, packing: Packing) -> Tensor:
    """Hidden state (P, D) at the last token of each prompt of a packing; gradients flow."""
    return packed_hidden(lm, packing, packing.ends())


@torch.no_grad()
def read(lm: LanguageModel, prompts: Sequence[Ids], prefixes: Sequence[Prefix], room: int = 0) -> Tensor:
    """Hidden state (P, D) at the last token of each prompt; what its prefix already holds is not encoded again.

    Afterwards each prefix holds its whole prompt (nothing where the model runs by its plain forward pass).

    Args:
        room: so many tokens are going to be written behind each prompt.
    """
    if not lm.shortcuts.packed:
        return last_hidden(lm, apart(prompts))
    kept = [prefix.match(prompt, REUSE) for prompt, prefix in zip(prompts, prefixes, strict=True)]
    lengths = [len(prompt) - start for prompt, start in zip(prompts, kept, strict=True)]
    lm.counters.reused += sum(kept)
    parts = portions(lengths, lm.pass_tokens)
    for prefix, prompt in zip(prefixes, prompts, strict=True):
        prefix.reserve(len(prompt) + room)
    return torch.cat([_continue(lm, prompts[rows], kept[rows], prefixes[rows]) for rows in parts])


def _continue(lm: LanguageModel, prompts: Sequence[Ids], kept: Sequence[int], prefixes: Sequence[Prefix]) -> Tensor:
    """One forward pass over what prompts have beyond the first `kept` tokens."""
    blocks = [Block(prompt[start:], start) for prompt, start in zip(prompts, kept, strict=True)]
    lengths = [len(block.ids) for block in blocks]
    hidden_PD = encode(lm, blocks, CachedAttention(prefixes, lengths), [end - 1 for end in accumulate(lengths)])
    for prefix, prompt in zip(prefixes, prompts, strict=True):
        prefix.hold(prompt)
    return hidden_PD


def choice_logits(
    lm: LanguageModel, prompts: Sequence[Ids], label_ids: Sequence[int], prefixes: Sequence[Prefix] | None = None
) -> Tensor:
    """Logits (P, A) of the choice labels after each prompt: one forward pass, A rows of the LM head.

    Gradients flow where no prefixes are given.
    """
    hidden_PD = last_hidden(lm, apart(prompts)) if prefixes is None else read(lm, prompts, prefixes)
    return lm.logits(hidden_PD, torch.tensor(label_ids, device=lm.device)).float()
