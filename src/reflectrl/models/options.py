"""Scoring options by a learned head: each option's text is read once after the prompt, and gets one number.

The prompt contains neither labels nor a list of the options. Options do not see each other, and the first token of each
has the position after the prompt. So an option's score depends only on the prompt and on its own text: apart from
rounding, it is the same in any order and next to any other options. A softmax over the set gives probabilities.

Options are read as a trie, so the tokens of a common prefix are read once.

Models that read (`model.family = "canon_llama"`) also write: the log-probability of an option's text among the listed
texts is added to its score, as `text_scoring.text_logits` computes it. So there the other texts matter, but not their
order. A look-up is learned by copying the answer, and
a comparison of whole options by the head; neither learns the other's part (docs/results/reading.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from reflectrl.models.sharing import REUSE, Block, Ids, KVCache, Packing, chunks, remainders
from reflectrl.models.text_scoring import Trie, option_scores

if TYPE_CHECKING:
    from reflectrl.models.backend import Candidates
    from reflectrl.models.packed import PackedBackend


def new_option_head(hidden_size: int, device: torch.device) -> nn.Parameter:
    """Return the weight of an untrained head. It is 0, so that every option is equally likely at first."""
    return nn.Parameter(torch.zeros(hidden_size, device=device))


class Options(NamedTuple):
    """Options of a prompt as a trie, sorted by their tokens.

    Attributes:
        trie: the trie. The last node of each path is the option's last token.
        order: for each path, the index of its option.
    """

    trie: Trie
    order: np.ndarray


def option_trie(candidates: Candidates) -> Options:
    """Build the trie of some options, sorted by their tokens, so that their order does not change the trie."""
    count, lengths = len(candidates.ids), np.array([len(ids) for ids in candidates.ids])
    token_AL = np.full((count, lengths.max()), -1)
    token_AL[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(candidates.ids)
    order = np.lexsort(token_AL.T[::-1])
    token_AL, lengths = token_AL[order], lengths[order]
    # In sorted order, an option shares its beginning with the one before it, up to the first different token.
    differs_AL = np.ones(token_AL.shape, bool)
    differs_AL[1:] = np.logical_or.accumulate(token_AL[1:] != token_AL[:-1], axis=1)
    fresh_AL = differs_AL & (token_AL >= 0)
    number_AL = (fresh_AL.ravel().cumsum() - 1).reshape(fresh_AL.shape)
    node_AL = np.maximum.accumulate(np.where(fresh_AL, number_AL, -1), axis=0)
    row_N, depth_N = np.nonzero(fresh_AL)
    parent_N = np.where(depth_N > 0, node_AL[row_N, depth_N - 1], -1)
    paths = tuple(tuple(path[:length]) for path, length in zip(node_AL.tolist(), lengths.tolist(), strict=True))
    trie = Trie(tuple(token_AL[fresh_AL].tolist()), tuple(parent_N.tolist()), tuple(depth_N.tolist()), paths)
    return Options(trie, order)


def option_logits(
    backend: PackedBackend,
    prompts: Sequence[Ids],
    candidates: Sequence[Candidates],
    head_D: Tensor,
    caches: Sequence[KVCache] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logits (P, A) of each prompt's options, padded with -inf, and hidden states (P, D) after the prompts.

    With caches, tokens are read in passes that fit into the processor's own caches. Without, one pass reads all.

    Args:
        prompts: a packing if there are no caches. Gradients flow through it.
        caches: KV cache of each prompt. Afterwards it holds the prompt, but no option.
    """
    options = [option_trie(prompt_options) for prompt_options in candidates]
    if caches is None:
        assert isinstance(prompts, Packing)
        hidden_PD, ends = _one_pass(backend, prompts, [prompt_options.trie for prompt_options in options])
    else:
        hidden_PD, ends = _passes(backend, prompts, [prompt_options.trie for prompt_options in options], caches)
    rows = []
    for prompt_options, end_AD in zip(options, ends, strict=True):
        scores_A = option_scores(end_AD, head_D)
        rows.append(scores_A[torch.from_numpy(np.argsort(prompt_options.order)).to(scores_A.device)])
    return pad_sequence(rows, batch_first=True, padding_value=-torch.inf), hidden_PD


def _one_pass(
    backend: PackedBackend, packing: Packing, tries: Sequence[Trie], caches: Sequence[KVCache] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Read prompts and tries together. Return hidden states (P, D) after the prompts, and (A, D) after the options."""
    behind = zip(tries, packing.lengths(), packing.paths, strict=True)
    branches = [Block(trie.ids, length, path, trie) for trie, length, path in behind]
    ends = _ends(tries, sum(len(block.ids) for block in packing.blocks))
    combined = replace(packing, blocks=[*packing.blocks, *branches])
    hidden_MD = backend.encode(combined, [*packing.ends(), *ends], caches and [*caches, *caches])
    hidden_PD, *parts = hidden_MD.split([len(tries), *(len(trie.paths) for trie in tries)])
    return hidden_PD, parts


def _passes(
    backend: PackedBackend, prompts: Sequence[Ids], tries: Sequence[Trie], caches: Sequence[KVCache]
) -> tuple[Tensor, list[Tensor]]:
    """Read prompts and tries, in one pass if that is small enough, and otherwise the tries part by part."""
    new = [len(prompt) - cache.match(prompt, REUSE) for prompt, cache in zip(prompts, caches, strict=True)]
    if sum(new) + sum(len(trie.ids) for trie in tries) <= backend.pass_tokens:
        return _one_pass(backend, remainders(prompts, caches), tries, caches)
    hidden_PD = backend.read(prompts, caches=caches)
    parts = [(i, part) for i, trie in enumerate(tries) for part in parts_of(trie, backend.pass_tokens)]
    ends: list[list[Tensor]] = [[] for _ in tries]
    for batch in chunks([len(part.ids) for _, part in parts], backend.pass_tokens):
        batch_parts = parts[batch]
        blocks = [Block(part.ids, len(prompts[i]), (), part) for i, part in batch_parts]
        positions = _ends([part for _, part in batch_parts], 0)
        hidden_MD = backend.encode(Packing(blocks), positions, [caches[i] for i, _ in batch_parts])
        split = hidden_MD.split([len(part.paths) for _, part in batch_parts])
        for (i, _), end_AD in zip(batch_parts, split, strict=True):
            ends[i].append(end_AD)
    return hidden_PD, [torch.cat(part_ends) for part_ends in ends]


def _ends(tries: Sequence[Trie], first: int) -> list[int]:
    """Return the index of each option's last token in a pass whose tries begin at token `first`."""
    starts = accumulate((len(trie.ids) for trie in tries), initial=first)
    return [start + path[-1] for start, trie in zip(starts, tries, strict=False) for path in trie.paths]


def parts_of(trie: Trie, most: int) -> list[Trie]:
    """Split a trie, text by text, into tries of about `most` nodes. Nodes that two parts share are in both."""
    if len(trie.ids) <= most:
        return [trie]
    tries = []
    for part in chunks([len(path) for path in trie.paths], most):
        paths = trie.paths[part]
        nodes = sorted({node for path in paths for node in path})
        new_index = {node: i for i, node in enumerate(nodes)}
        tries.append(
            Trie(
                tuple(trie.ids[node] for node in nodes),
                tuple(new_index.get(trie.parents[node], -1) for node in nodes),
                tuple(trie.depths[node] for node in nodes),
                tuple(tuple(new_index[node] for node in path) for path in paths),
            )
        )
    return tries
