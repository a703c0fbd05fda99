"""Attention of a pass over blocks, many blocks at a time: what `BlockAttention` computes, for GPUs.

There every call costs a launch, however little it computes, and every answer that the host waits for stops the device.
So blocks of like length are attended together, in padded batches of which each side is padding to less than a half: a
handful of them per pass, whatever the number of blocks. All that says which token sees which goes to the device before
the first layer, and nothing comes back.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reflectrl.models.attention import folded, recomputed, to_device
from reflectrl.models.sharing import Block, KVCache, copy_all, extend


class BatchedAttention:
    """Attention of a pass over blocks of tokens; gradients flow through those without caches.

    Args:
        blocks: as for `BlockAttention`.
        caches: likewise; a block that sees tokens of this pass besides its cache names them as its context.
        layers: how many the model has; all have equal numbers of heads.
    """

    def __init__(
        self, blocks: Sequence[Block], caches: Sequence[KVCache] | None, layers: int, device: torch.device
    ) -> None:
        starts = [*accumulate((len(block.ids) for block in blocks), initial=0)]
        self._batches, self._cells, at_N = list[_Batch](), 0, np.empty(starts[-1], np.int64)
        for group in alike(blocks):
            seen = [spelled(blocks, starts, i) for i in group]
            own = None if caches is None else [caches[i] for i in group]
            batch = _Batch([blocks[i] for i in group], own, seen, layers, device)
            for row, i in enumerate(group):
                at_N[starts[i] : starts[i + 1]] = self._cells + row * batch.wide + np.arange(len(blocks[i].ids))
            self._cells += len(group) * batch.wide
            self._batches.append(batch)
        (self._at_N,) = to_device(device, at_N)
        """Where each token stands among the queries of all batches, padding included."""

    def __call__(
        self,
        layer: int,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        dropout: float = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        at = self._at_N if wanted is None else self._at_N[wanted]
        cells_CHD = query_NHD.new_zeros(self._cells, *query_NHD.shape[1:]).index_put((at,), query_NHD)
        parts = cells_CHD.split([len(batch.blocks) * batch.wide for batch in self._batches])
        outs = [
            batch.attend(layer, part.unflatten(0, (-1, batch.wide)), key_NGD, value_NGD, dropout).flatten(0, 1)
            for batch, part in zip(self._batches, parts, strict=True)
        ]
        return torch.cat(outs)[at]


def alike(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks' numbers in groups of one kind, in which numbers of queries and of keys differ by less than twice."""
    groups = defaultdict(list)
    for i, block in enumerate(blocks):
        kind = "trie" if block.trie is not None else "run" if block.start else "whole"
        new = len(block.ids)
        groups[kind, new.bit_length(), (block.start + new).bit_length()].append(i)
    return list(groups.values())


def spelled(blocks: Sequence[Block], starts: Sequence[int], i: int) -> np.ndarray:
    """Which of the pass's tokens a block sees: those of its context, and its own.

    Args:
        starts: where each block begins among the tokens.
    """
    spans = (*blocks[i].context, (i, len(blocks[i].ids)))
    return np.concatenate([starts[block] + np.arange(count) for block, count in spans])


class _Batch:
    """Blocks of one kind that are attended together: R rows, of at most S queries and T keys.

    Args:
        seen: for each row which of the pass's N tokens it sees, up to its own; what it sees besides stands before them
            in its KV cache.

    Attributes:
        wide, long: S and T.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        caches: Sequence[KVCache] | None,
        seen: Sequence[np.ndarray],
        layers: int,
        device: torch.device,
    ) -> None:
        self.blocks, self.caches, self.layers = blocks, caches, layers
        ends = [block.start + len(block.ids) for block in blocks]
        self.wide, self.long = max(len(block.ids) for block in blocks), max(ends)
        self._before = [end - len(tokens) for end, tokens in zip(ends, seen, strict=True)]
        """How many tokens each row sees in its KV cache."""
        rows = np.repeat(np.arange(len(blocks)), [len(tokens) for tokens in seen])
        places = np.concatenate([np.arange(first, end) for first, end in zip(self._before, ends, strict=True)])
        starts = np.array([block.start for block in blocks])
        columns = (rows, places, np.concatenate(seen), starts, *related(blocks))
        self._rows_E, self._places_E, self._tokens_E, self._starts_R, *self._related = to_device(device, *columns)
        self._masks: dict[int, Tensor] = {}

    def attend(self, layer: int, query_RSHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, dropout: float) -> Tensor:
        """What the rows' queries find, (R, S, H · D)."""
        group = query_RSHD.shape[2] // key_NGD.shape[1]
        kept: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.caches is None:
            key_RGTD, value_RGTD = (self._gather(part) for part in (key_NGD, value_NGD))
            kept = self._gathered_again((key_RGTD, value_RGTD), (key_NGD, value_NGD))
        else:
            key_RGTD, value_RGTD = self._behind_caches(layer, key_NGD, value_NGD)
        with kept:
            if self.blocks[0].start:
                mask = self._mask(query_RSHD, group)
                return folded(query_RSHD, key_RGTD, value_RGTD, mask, dropout)
            return causal(query_RSHD, key_RGTD, value_RGTD, dropout)

    def _gather(self, part_NGD: Tensor) -> Tensor:
        """Keys or values of the rows, (R, G, T, D). The padding holds tokens that nobody sees."""
        cells = torch.arange(len(self.blocks) * self.long, device=part_NGD.device)
        padding_RT = (cells % len(part_NGD)).view(-1, self.long)  # many tokens, lest one collect all their gradients
        tokens_RT = padding_RT.index_put((self._rows_E, self._places_E), self._tokens_E)
        return part_NGD[tokens_RT].transpose(1, 2)

    def _gathered_again(
        self, wholes: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> contextlib.AbstractContextManager[Any]:
        """Within the block, autograd keeps the parts, and gathers them again backwards (as `kept_in_parts`)."""
        if not torch.is_grad_enabled() or recomputed.get():
            return contextlib.nullcontext()
        again = {
            (whole.data_ptr(), whole.shape): partial(self._gather, part.detach())
            for whole, part in zip(wholes, parts, strict=True)
        }
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: again.get((tensor.data_ptr(), tensor.shape), tensor.detach()),
            lambda kept: kept() if isinstance(kept, partial) else kept,
        )

    def _behind_caches(self, layer: int, key_NGD: Tensor, value_NGD: Tensor) -> Sequence[Tensor]:
        """Keys and values of the rows, (R, G, T, D) each: copies of the caches, with the pass's own put behind them."""
        assert self.caches is not None
        if layer == 0:
            rows, (_, heads, width) = len(self.blocks), key_NGD.shape
            self._held = key_NGD.new_zeros(rows, self.long, self.layers, 2, heads, width)
            before = [(row, count) for row, count in enumerate(self._before) if count]
            copy_all(
                [self._held[row, :count] for row, count in before],
                [self.caches[row].first(count) for row, count in before],
            )
        both = self._held[:, :, layer].unbind(2)
        for held_RTGD, new_NGD in zip(both, (key_NGD, value_NGD), strict=True):
            held_RTGD[self._rows_E, self._places_E] = new_NGD[self._tokens_E]
        if layer == self.layers - 1:
            runs = [(row, block) for row, block in enumerate(self.blocks) if block.trie is None]
            new = [self._held[row, block.start : block.start + len(block.ids)] for row, block in runs]
            extend([self.caches[row] for row, _ in runs], [block.start for _, block in runs], new)
        return [held_RTGD.transpose(1, 2) for held_RTGD in both]

    def _mask(self, query_RSHD: Tensor, group: int) -> Tensor:
        """What each query must not see, (R, group · S, T), as `folded` wants it; the same in every layer."""
        if group not in self._masks:
            places_T, starts_R11 = torch.arange(self.long, device=query_RSHD.device), self._starts_R[:, None, None]
            if self.blocks[0].trie is None:  # each sees its own past
                seen_RST = places_T <= starts_R11 + torch.arange(self.wide, device=query_RSHD.device)[:, None]
            else:
                seen_RST = (places_T < starts_R11).repeat(1, self.wide, 1)
                seen_RST[tuple(self._related)] = True
            mask_RST = query_RSHD.new_zeros(seen_RST.shape).masked_fill_(~seen_RST, -torch.inf)
            self._masks[group] = mask_RST.repeat(1, group, 1)
        return self._masks[group]


def related(blocks: Sequence[Block]) -> list[np.ndarray]:
    """Which tokens of tries see which, as three columns: the block, the token's place in it, and that of a key."""
    found = [np.empty((0, 3), np.int64)]
    for row, block in enumerate(blocks):
        if block.trie is not None:
            pairs = np.argwhere(block.trie.ancestors())
            found.append(np.insert(pairs, 0, row, axis=1) + np.array([0, 0, block.start]))
    return list(np.concatenate(found).T)


def causal(query_RSHD: Tensor, key_RGTD: Tensor, value_RGTD: Tensor, dropout: float) -> Tensor:
    """Attention (R, S, H · D) of rows that begin their sequences: S = T, and each token sees its own past.

    No mask is made, so that flash attention may do it. Keys are repeated for the queries that share them, since not
    every kernel does that.
    """
    group = query_RSHD.shape[2] // key_RGTD.shape[1]
    if group > 1:
        key_RGTD, value_RGTD = (part.repeat_interleave(group, 1) for part in (key_RGTD, value_RGTD))
    out_RHSD = functional.scaled_dot_product_attention(
        query_RSHD.transpose(1, 2), key_RGTD, value_RGTD, dropout_p=dropout, is_causal=True
    )
    return out_RHSD.transpose(1, 2).flatten(2)
