"""Scoring actions by their texts: the alternative to enumeration, in which the model reads an action word by word.

SayCan (Ahn et al. 2022) gives an action the probability of its text; TWOSOME (Tan et al. 2024) divides its logarithm by
the number of tokens or of words, lest long actions never be taken. A trie allows only tokens that lead to a legal
action, and gives each action the probability with which free writing under that constraint would spell it. All are
exact, and take one forward pass: the prompt is encoded once, and the actions are branches of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from reflectrl.models.attention import CachedAttention
from reflectrl.models.engine import REUSE, encode, packed_hidden
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Block, Ids, Packing, Trie, apart, make_trie
from reflectrl.models.prefix import Prefix

Scoring = Literal["enumeration", "sum", "token", "word", "trie"]

ROWS = 1024
"""Positions whose whole vocabulary is held at a time."""


class Texts(NamedTuple):
    """The actions that may follow a prompt: token ids with the end-of-text, and the number of words of each."""

    ids: tuple[Ids, ...]
    words: tuple[int, ...]


def action_texts(lm: LanguageModel, actions: Sequence[str]) -> Texts:
    """What the policy would write to take each of the actions."""
    end = lm.tokenizer.eos_token_id
    ids = tuple((*lm.encode(f" {action}"), end) for action in actions)
    return Texts(ids, tuple(max(1, len(action.split())) for action in actions))


def text_logits(
    lm: LanguageModel,
    packing: Packing,
    texts: Sequence[Texts],
    scoring: Scoring,
) -> tuple[Tensor, Tensor]:
    """Logits (P, A) of each prompt's actions and hidden states (P, D) after the prompts; gradients flow.

    Args:
        packing: the prompts.
        texts: the actions of each prompt; rows with fewer than A end in -inf.
    """
    tries = [make_trie(one.ids) for one in texts]
    starts = [sum(n for _, n in path) for path in packing.paths]
    branches = [
        Block(trie.ids, start, path, trie)
        for trie, start, path in zip(tries, starts, packing.paths, strict=True)
        if trie.ids
    ]
    first, nodes = sum(len(block.ids) for block in packing.blocks), sum(len(trie.ids) for trie in tries)
    at = [*packing.ends(), *range(first, first + nodes)]
    hidden_MD = packed_hidden(lm, replace(packing, blocks=[*packing.blocks, *branches]), at)
    return _logits(lm, hidden_MD, tries, texts, scoring), hidden_MD[: len(tries)]


@torch.no_grad()
def cached_text_logits(
    lm: LanguageModel, prompts: Sequence[Ids], texts: Sequence[Texts], scoring: Scoring, prefixes: Sequence[Prefix]
) -> Tensor:
    """Logits (P, A) as `text_logits` has them, each prompt continued from what its prefix holds.

    Afterwards each prefix holds its whole prompt, and no action.
    """
    if not lm.shortcuts.packed:
        return text_logits(lm, apart(prompts), texts, scoring)[0]
    tries = [make_trie(one.ids) for one in texts]
    kept = [prefix.match(prompt, REUSE) for prompt, prefix in zip(prompts, prefixes, strict=True)]
    rows = [
        block
        for prompt, start, trie in zip(prompts, kept, tries, strict=True)
        for block in (Block(prompt[start:], start), Block(trie.ids, len(prompt), trie=trie))
    ]
    lengths = [len(row.ids) for row in rows]
    for prompt, prefix, trie in zip(prompts, prefixes, tries, strict=True):
        prefix.reserve(len(prompt) + len(trie.ids))
    attend = CachedAttention([p for prefix in prefixes for p in (prefix, prefix)], lengths, [row.trie for row in rows])
    firsts = [int(first) for first in np.cumsum([0, *lengths])[1::2]]
    nodes = [first + node for first, trie in zip(firsts, tries, strict=True) for node in range(len(trie.ids))]
    hidden_MD = encode(lm, rows, attend, [*(first - 1 for first in firsts), *nodes])
    for prompt, prefix in zip(prompts, prefixes, strict=True):
        prefix.hold(prompt)
    lm.counters.reused += sum(kept)
    return _logits(lm, hidden_MD, tries, texts, scoring)


def _logits(
    lm: LanguageModel, hidden_MD: Tensor, tries: Sequence[Trie], texts: Sequence[Texts], scoring: Scoring
) -> Tensor:
    """Logits (P, A) from hidden states: those after the P prompts, then those of all tries' nodes, trie by trie."""
    firsts = np.cumsum([len(tries), *(len(trie.ids) for trie in tries)])
    edges: dict[tuple[int, int], int] = {}  # (where the token is predicted, token) -> its number
    spelled: list[tuple[int, int, int]] = []  # (prompt, action, edge)
    for p, (first, trie, one) in enumerate(zip(firsts, tries, texts, strict=False)):
        for a, (path, ids) in enumerate(zip(trie.paths, one.ids, strict=True)):
            for source, token in zip([p, *(int(first) + node for node in path)], ids, strict=True):
                spelled.append((p, a, edges.setdefault((source, token), len(edges))))
    sources, tokens = (torch.tensor(column, device=lm.device) for column in zip(*edges, strict=True))
    rows, where = sources.unique(return_inverse=True)
    score = _allowed_logp if scoring == "trie" else _token_logp
    logp_E = score(lm, hidden_MD[rows], where, tokens)
    most = max(len(one.ids) for one in texts)
    prompt, action, edge = torch.tensor(spelled, device=lm.device).T
    flat = logp_E.new_zeros(len(texts) * most).index_add(0, prompt * most + action, logp_E[edge])
    counts = torch.tensor([len(one.ids) for one in texts], device=lm.device)
    missing = torch.arange(most, device=lm.device)[None] >= counts[:, None]
    return (flat.view(len(texts), most) / _divisors(texts, scoring, most, logp_E)).masked_fill(missing, -torch.inf)


def _divisors(texts: Sequence[Texts], scoring: Scoring, most: int, like: Tensor) -> Tensor:
    """By what each action's log-probability is divided, (P, A)."""
    if scoring not in ("token", "word"):
        return like.new_ones(1, 1)
    sizes = [[len(ids) for ids in one.ids] if scoring == "token" else list(one.words) for one in texts]
    return like.new_tensor([[*row, *[1] * (most - len(row))] for row in sizes])


def _token_logp(lm: LanguageModel, hidden_RD: Tensor, where_E: Tensor, tokens_E: Tensor) -> Tensor:
    """Log-probability (E,) of each token in the whole vocabulary after the row it follows."""
    total_R = torch.cat([_normaliser(lm, part_RD) for part_RD in hidden_RD.split(ROWS)])
    return lm.token_logits(hidden_RD, where_E, tokens_E) - total_R[where_E]


def _normaliser(lm: LanguageModel, hidden_RD: Tensor) -> Tensor:
    """Logarithm of the sum over the vocabulary, (R,); where gradients flow, its logits are computed again for them."""

    def total(part_RD: Tensor) -> Tensor:
        return lm.logits(part_RD).float().logsumexp(-1)

    return checkpoint(total, hidden_RD, use_reentrant=False) if torch.is_grad_enabled() else total(hidden_RD)


def _allowed_logp(lm: LanguageModel, hidden_RD: Tensor, where_E: Tensor, tokens_E: Tensor) -> Tensor:
    """Log-probability (E,) of each token among those that are allowed after the same row."""
    logits_E = lm.token_logits(hidden_RD, where_E, tokens_E)
    highest = logits_E.detach().new_full((len(hidden_RD),), -torch.inf)
    highest = highest.scatter_reduce(0, where_E, logits_E.detach(), "amax")
    sums = torch.zeros_like(highest).index_add(0, where_E, (logits_E - highest[where_E]).exp())
    return logits_E - (sums.log() + highest)[where_E]
