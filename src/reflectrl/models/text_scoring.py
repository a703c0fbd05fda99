"""Scoring actions by their texts: the alternative to enumeration, in which the model reads each action's words.

SayCan (Ahn et al. 2022) gives an action the probability of its text. TWOSOME (Tan et al. 2024) divides the
log-probability by the number of tokens or words, because long actions would never be taken otherwise. A trie allows
only tokens that lead to a legal action, and gives each action the probability that writing under this constraint
produces it. All are exact and take a single forward pass: the prompt is encoded once, and the actions branch off it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from reflectrl.models.attention import to_device
from reflectrl.models.backend import Candidates, Scoring
from reflectrl.models.sharing import REUSE, Block, Ids, KVCache, Packing, remainders

if TYPE_CHECKING:
    from reflectrl.models.packed import PackedBackend

ROWS = 1024
"""Largest number of positions whose logits over the whole vocabulary are in memory at the same time."""


@dataclass(frozen=True)
class Trie:
    """Several short texts after a prompt, with common prefixes merged. The last token of each text is left out.

    (Nothing follows the last token, so its hidden state is not needed.)

    Attributes:
        ids: token of each node. A parent comes before its children.
        parents: index of each node's parent; -1 for nodes that directly follow the prompt.
        depths: number of tokens between the prompt and the node.
        paths: nodes of each text.
    """

    ids: Ids
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    def ancestors(self) -> np.ndarray:
        """Return a boolean matrix (S, S): entry (i, j) is True if node j is node i or its ancestor."""
        seen = np.eye(len(self.ids), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen


def make_trie(texts: Sequence[Ids]) -> Trie:
    """Build the trie of some texts' token ids."""
    nodes: dict[tuple[int, int], int] = {}
    parents, depths, paths = [], [], []
    for text in texts:
        path: list[int] = []
        for depth, token in enumerate(text[:-1]):
            parent = path[-1] if path else -1
            if (parent, token) not in nodes:
                nodes[parent, token] = len(nodes)
                parents.append(parent)
                depths.append(depth)
            path.append(nodes[parent, token])
        paths.append(tuple(path))
    return Trie(tuple(token for _, token in nodes), tuple(parents), tuple(depths), tuple(paths))


def text_logits(
    backend: PackedBackend,
    prompts: Sequence[Ids],
    candidates: Sequence[Candidates],
    scoring: Scoring,
    caches: Sequence[KVCache] | None = None,
    head_D: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logits (P, A) of each prompt's actions, padded with -inf, and hidden states (P, D) after the prompts.

    Args:
        prompts: a packing if there are no caches. Gradients flow through it.
        caches: KV cache of each prompt. Afterwards it holds the prompt, but no action.
        head_D: weight of a head whose score of each text, read to its last word, is added.
    """
    if caches is not None:
        for prompt, cache in zip(prompts, caches, strict=True):
            cache.match(prompt, REUSE)
    packing = prompts if isinstance(prompts, Packing) else remainders(prompts, caches or ())
    tries = [make_trie(actions.ids) for actions in candidates]
    contexts = zip(tries, packing.lengths(), packing.paths, strict=True)
    branches = [Block(trie.ids, length, path, trie) for trie, length, path in contexts if trie.ids]
    block_caches = caches and [*caches, *(cache for cache, trie in zip(caches, tries, strict=True) if trie.ids)]
    first, nodes = sum(len(block.ids) for block in packing.blocks), sum(len(trie.ids) for trie in tries)
    combined, positions = (
        replace(packing, blocks=[*packing.blocks, *branches]),
        [*packing.ends(), *range(first, first + nodes)],
    )
    hidden_MD = backend.encode(combined, positions, block_caches)
    logits_PA = _logits(backend, hidden_MD, tries, candidates, scoring)
    if head_D is not None:
        scores_M = option_scores(hidden_MD, head_D)
        logits_PA = logits_PA + pad_sequence([scores_M[ends] for ends in _ends(tries)], batch_first=True)
    return logits_PA, hidden_MD[: len(tries)]


def option_scores(hidden_MD: Tensor, head_D: Tensor) -> Tensor:
    """Compute the scores (M,) of hidden states at the ends of options, in float32 even under autocast."""
    return (hidden_MD.float() * head_D.float()).sum(-1)


def _ends(tries: Sequence[Trie]) -> list[list[int]]:
    """Return the row of each text's last node, for each trie; the prompt's end for texts without a node.

    Rows are those of the P prompts' ends, followed by all nodes of the tries in order.
    """
    ends, first = list[list[int]](), len(tries)
    for prompt, trie in enumerate(tries):
        own = [prompt] * len(trie.paths)
        for text, path in enumerate(trie.paths):
            if path:
                own[text] = first + path[-1]
        ends.append(own)
        first += len(trie.ids)
    return ends


def _logits(
    backend: PackedBackend, hidden_MD: Tensor, tries: Sequence[Trie], texts: Sequence[Candidates], scoring: Scoring
) -> Tensor:
    """Compute logits (P, A) from hidden states of the P prompts' ends, followed by all nodes of the tries in order."""
    firsts = accumulate((len(trie.ids) for trie in tries), initial=len(tries))
    edges: dict[tuple[int, int], int] = {}  # (hidden state before a token, the token) -> its number
    action_edges: list[tuple[int, int, int]] = []  # (prompt, action, edge)
    for p, (first, trie, prompt_texts) in enumerate(zip(firsts, tries, texts, strict=False)):
        for a, (path, ids) in enumerate(zip(trie.paths, prompt_texts.ids, strict=True)):
            for source, token in zip([p, *(first + node for node in path)], ids, strict=True):
                action_edges.append((p, a, edges.setdefault((source, token), len(edges))))
    rows, row_of_edge = np.unique([source for source, _ in edges], return_inverse=True)
    most = max(len(prompt_texts.ids) for prompt_texts in texts)
    actions = [prompt * most + action for prompt, action, _ in action_edges]
    sizes = np.zeros((len(texts), most), np.int64)
    for sizes_A, prompt_texts in zip(sizes, texts, strict=True):
        sizes_A[: len(prompt_texts.ids)] = {
            "token": [len(ids) for ids in prompt_texts.ids],
            "word": prompt_texts.words,
        }.get(scoring, 1)
    columns = (
        rows,
        row_of_edge,
        [token for _, token in edges],
        actions,
        [edge for *_, edge in action_edges],
        sizes.ravel(),
    )
    rows_R, where_E, tokens_E, actions_S, edges_S, sizes_X = to_device(backend.device, *columns)
    score = _allowed_logp if scoring == "trie" else _token_logp
    logp_E = score(backend, hidden_MD[rows_R], where_E, tokens_E)
    flat_X = logp_E.new_zeros(len(sizes_X)).index_add(0, actions_S, logp_E[edges_S])
    return (flat_X / sizes_X.clamp(min=1)).masked_fill(sizes_X == 0, -torch.inf).view(len(texts), most)


def _token_logp(backend: PackedBackend, hidden_RD: Tensor, where_E: Tensor, tokens_E: Tensor) -> Tensor:
    """Return the log-probability (E,) of each token after its row, normalised over the whole vocabulary."""

    def log_total(part_RD: Tensor) -> Tensor:
        return backend.logits(part_RD).float().logsumexp(-1)

    # With gradients, logits are recomputed in the backward pass, so that only `ROWS` rows of them are in memory.
    parts, grad = hidden_RD.split(ROWS), torch.is_grad_enabled()
    total_R = torch.cat([checkpoint(log_total, x, use_reentrant=False) if grad else log_total(x) for x in parts])
    return backend.token_logits(hidden_RD, where_E, tokens_E) - total_R[where_E]


def _allowed_logp(backend: PackedBackend, hidden_RD: Tensor, where_E: Tensor, tokens_E: Tensor) -> Tensor:
    """Return the log-probability (E,) of each token, normalised over the tokens that are allowed after the same row."""
    logits_E = backend.token_logits(hidden_RD, where_E, tokens_E)
    highest = logits_E.detach().new_full((len(hidden_RD),), -torch.inf)
    highest = highest.scatter_reduce(0, where_E, logits_E.detach(), "amax")
    sums = torch.zeros_like(highest).index_add(0, where_E, (logits_E - highest[where_E]).exp())
    return logits_E - (sums.log() + highest)[where_E]
