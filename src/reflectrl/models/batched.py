"""Attention over blocks in padded batches. It gives the results of `BlockAttention`, many blocks at a time.

GPUs use it for all passes, and CPUs for passes over many small blocks (`packed.SMALL`). On a GPU every call costs a
launch, however little it computes, and the device idles whenever the host waits for a result. So blocks of similar
length are attended together in padded batches. Less than half of each dimension of a batch is padding, and a pass needs
only a handful of batches, whatever its number of blocks. All indices and masks go to the device before the first layer,
and nothing is read back.
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
    """Attention of a forward pass over blocks of tokens. Gradients flow only in passes without caches.

    Args:
        blocks: as for `BlockAttention`.
        caches: as for `BlockAttention`. If a block also sees tokens of this pass, its `context` names them.
        layers: number of the model's layers. All have equal numbers of heads.
    """

    def __init__(
        self, blocks: Sequence[Block], caches: Sequence[KVCache] | None, layers: int, device: torch.device
    ) -> None:
        starts = [*accumulate((len(block.ids) for block in blocks), initial=0)]
        groups = length_buckets(blocks)
        self._cells, self._batches = _Cells(blocks, groups, device), list[_Batch]()
        for group in groups:
            seen = [visible_token_indices(blocks, starts, i) for i in group]
            own = None if caches is None else [caches[i] for i in group]
            self._batches.append(_Batch([blocks[i] for i in group], own, seen, layers, device))

    def __call__(
        self,
        layer: int,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        dropout: float = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        outs = [
            batch.attend(layer, query_RSHD, key_NGD, value_NGD, dropout)
            for batch, query_RSHD in zip(self._batches, self._cells.fill(query_NHD, wanted), strict=True)
        ]
        return self._cells.collect(outs, wanted)


class WholeAttention:
    """Attention of prompts that share nothing. Each sees only itself, so padded batches need no mask.

    On a CPU this gains nothing unless they are short: the copies cost as much as the saved calls. Update and SFT of a
    model with four layers of width 256, on 16 and 64 rows of 155 tokens, were 0.87 to 1.05 times as fast.

    Args:
        blocks: one for each prompt, without a context.
    """

    def __init__(self, blocks: Sequence[Block], device: torch.device) -> None:
        self._cells = _Cells(blocks, length_buckets(blocks), device)

    def __call__(
        self,
        layer: int,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        dropout: float = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        keys, values = self._cells.fill(key_NGD), self._cells.fill(value_NGD)
        outs = [
            causal(query_RSHD, key_RSGD.transpose(1, 2), value_RSGD.transpose(1, 2), dropout)
            for query_RSHD, key_RSGD, value_RSGD in zip(self._cells.fill(query_NHD, wanted), keys, values, strict=True)
        ]
        return self._cells.collect(outs, wanted)


def share_nothing(blocks: Sequence[Block]) -> bool:
    """Return whether every block is a plain run of tokens at the start of its sequence."""
    return all(not block.start and block.trie is None for block in blocks)


class _Cells:
    """Map of a pass's tokens to cells of padded batches. Each block is a row of cells: its queries, then padding.

    Args:
        groups: indices of the blocks in each batch, a row for each block.
    """

    def __init__(self, blocks: Sequence[Block], groups: Sequence[Sequence[int]], device: torch.device) -> None:
        starts = [*accumulate((len(block.ids) for block in blocks), initial=0)]
        self._shapes, cells, at_N = list[tuple[int, int]](), 0, np.empty(starts[-1], np.int64)
        for group in groups:
            wide = max(len(blocks[i].ids) for i in group)
            for row, i in enumerate(group):
                at_N[starts[i] : starts[i + 1]] = cells + row * wide + np.arange(len(blocks[i].ids))
            cells += len(group) * wide
            self._shapes.append((len(group), wide))
        token_C, is_padding_C = np.zeros(cells, np.int64), np.ones(cells, np.int64)
        token_C[at_N], is_padding_C[at_N] = np.arange(starts[-1]), 0
        self._at_N, self._token_C, padding_C = to_device(device, at_N, token_C, is_padding_C)
        """Cell of each token, and token of each cell (token 0 for padding)."""
        self._padding_C = padding_C.bool()

    def fill(self, part_NHD: Tensor, wanted: Tensor | None = None) -> list[Tensor]:
        """Arrange queries, keys or values in the cells of each batch, (R, S, H, D).

        Args:
            part_NHD: rows of all tokens, or of the `wanted` ones only. Without `wanted`, padding holds copies of a
                token, and results for it must not be used. With `wanted`, all other cells hold zeros.
        """
        if wanted is None:
            cells_CHD = _Moved.apply(part_NHD, self._token_C, self._at_N, None)
        else:
            cells_CHD = part_NHD.new_zeros(len(self._token_C), *part_NHD.shape[1:])
            cells_CHD = cells_CHD.index_put((self._at_N[wanted],), part_NHD)
        parts = cells_CHD.split([rows * wide for rows, wide in self._shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def collect(self, outs: Sequence[Tensor], wanted: Tensor | None = None) -> Tensor:
        """Return the results (R, S, ...) of all batches in the order of tokens: of all, or of the `wanted` ones."""
        cells = torch.cat([out.flatten(0, 1) for out in outs]) if len(outs) > 1 else outs[0].flatten(0, 1)
        if wanted is not None:
            return cells[self._at_N[wanted]]
        return _Moved.apply(cells, self._at_N, self._token_C, self._padding_C)


class _Moved(torch.autograd.Function):
    """Indexing `part[index]` with a gradient that is also a plain selection of rows.

    Torch's own gradient of indexing sorts the indices and sums, in case a row was selected several times. That takes a
    dozen launches on a GPU, and each may take as long as attention itself.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, index: Tensor, back: Tensor, ignored: Tensor | None) -> Tensor:
        """Select rows.

        Args:
            index: selected rows of `part`. Of several copies of a row, only the copy at `back` may have a gradient.
            back: for each row of `part`, its row in the result.
            ignored: mask of the rows of `part` that are not in the result, so their gradient is 0; None for none.
        """
        ctx.save_for_backward(back, *([] if ignored is None else [ignored]))
        return part[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Put each row's gradient back in its place."""
        back, *ignored = ctx.saved_tensors
        gradient = gradients[0][back]
        if ignored:
            gradient = gradient.masked_fill(ignored[0].view(-1, *[1] * (gradient.ndim - 1)), 0.0)
        return gradient, None, None, None


def length_buckets(blocks: Sequence[Block]) -> list[list[int]]:
    """Group the blocks' indices by kind and size. In a group, query and key counts differ by less than a factor 2."""
    groups = defaultdict(list)
    for i, block in enumerate(blocks):
        kind = "trie" if block.trie is not None else "run" if block.start else "whole"
        new = len(block.ids)
        groups[kind, new.bit_length(), (block.start + new).bit_length()].append(i)
    return list(groups.values())


def visible_token_indices(blocks: Sequence[Block], starts: Sequence[int], i: int) -> np.ndarray:
    """Return the indices of the pass's tokens that a block sees: its context's and its own.

    Args:
        starts: index of each block's first token in the pass.
    """
    spans = (*blocks[i].context, (i, len(blocks[i].ids)))
    return np.concatenate([starts[block] + np.arange(count) for block, count in spans])


class _Batch:
    """Blocks of the same kind that are attended together: R rows with at most S queries and T keys each.

    Args:
        seen: for each row, the indices of the pass's tokens that it sees, its own last. All other tokens that it sees
            come before them and are in its KV cache.

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
        """Number of tokens that each row sees in its KV cache."""
        rows = np.repeat(np.arange(len(blocks)), [len(tokens) for tokens in seen])
        positions = np.concatenate([np.arange(first, end) for first, end in zip(self._before, ends, strict=True)])
        starts = np.array([block.start for block in blocks])
        tokens_E, count = np.concatenate(seen), 1 + max(map(int, map(np.max, seen)))
        token_RT = np.arange(len(blocks) * self.long).reshape(-1, self.long) % count
        # Padding is spread over many tokens, so that no token collects all gradients.
        token_RT[rows, positions] = tokens_E
        columns = (rows, positions, tokens_E, starts, token_RT.ravel(), *trie_pairs(blocks))
        self._rows_E, self._places_E, self._tokens_E, self._starts_R, tokens, *self._related = to_device(
            device, *columns
        )
        self._token_RT = tokens.view(-1, self.long)
        self._masks: dict[int, Tensor] = {}

    def attend(self, layer: int, query_RSHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, dropout: float) -> Tensor:
        """Compute the attention output (R, S, H · D) of the rows' queries."""
        group = query_RSHD.shape[2] // key_NGD.shape[1]
        hooks: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.caches is None:
            key_RGTD, value_RGTD = (self._gather(part) for part in (key_NGD, value_NGD))
            hooks = self._gathered_again((key_RGTD, value_RGTD), (key_NGD, value_NGD))
        else:
            key_RGTD, value_RGTD = self._behind_caches(layer, key_NGD, value_NGD)
        with hooks:
            if self.blocks[0].start:
                mask = self._mask(query_RSHD, group)
                return folded(query_RSHD, key_RGTD, value_RGTD, mask, dropout)
            return causal(query_RSHD, key_RGTD, value_RGTD, dropout)

    def _gather(self, part_NGD: Tensor) -> Tensor:
        """Gather keys or values of the rows, (R, G, T, D). Padding holds tokens that no query sees."""
        return part_NGD[self._token_RT].transpose(1, 2)

    def _gathered_again(
        self, gathered: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> contextlib.AbstractContextManager[Any]:
        """Make autograd save the parts, and gather them again in the backward pass (as `kept_in_parts`)."""
        if not torch.is_grad_enabled() or recomputed.get():
            return contextlib.nullcontext()
        regather = {
            (copy.data_ptr(), copy.shape): partial(self._gather, part.detach())
            for copy, part in zip(gathered, parts, strict=True)
        }
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: regather.get((tensor.data_ptr(), tensor.shape), tensor.detach()),
            lambda saved: saved() if isinstance(saved, partial) else saved,
        )

    def _behind_caches(self, layer: int, key_NGD: Tensor, value_NGD: Tensor) -> Sequence[Tensor]:
        """Return keys and values of the rows, (R, G, T, D) each: copies of the caches, then the pass's own."""
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
        """Return the additive mask (R, group · S, T) in the layout of `folded`. It is the same in every layer."""
        if group not in self._masks:
            positions_T, starts_R11 = torch.arange(self.long, device=query_RSHD.device), self._starts_R[:, None, None]
            if self.blocks[0].trie is None:  # each token sees its own past
                seen_RST = positions_T <= starts_R11 + torch.arange(self.wide, device=query_RSHD.device)[:, None]
            else:
                seen_RST = (positions_T < starts_R11).repeat(1, self.wide, 1)
                seen_RST[tuple(self._related)] = True
            mask_RST = query_RSHD.new_zeros(seen_RST.shape).masked_fill_(~seen_RST, -torch.inf)
            self._masks[group] = mask_RST.repeat(1, group, 1)
        return self._masks[group]


def trie_pairs(blocks: Sequence[Block]) -> list[np.ndarray]:
    """Return the visible pairs of tokens in tries as three columns: the block, and the positions of query and key.

    A key's position counts the tokens before the block too.
    """
    triples = [np.empty((0, 3), np.int64)]
    for row, block in enumerate(blocks):
        if block.trie is not None:
            pairs = np.argwhere(block.trie.ancestors())
            triples.append(np.insert(pairs, 0, row, axis=1) + np.array([0, 0, block.start]))
    return list(np.concatenate(triples).T)


def causal(query_RSHD: Tensor, key_RGTD: Tensor, value_RGTD: Tensor, dropout: float) -> Tensor:
    """Compute causal attention (R, S, H · D) of rows at the start of their sequences (S = T).

    No mask is made, so that flash attention can be used. Flash attention lets queries share key heads, but accepts
    16-bit numbers only. For the other kernels, keys are repeated.
    """
    group = query_RSHD.shape[2] // key_RGTD.shape[1]
    flash = query_RSHD.is_cuda and query_RSHD.dtype in (torch.bfloat16, torch.float16)
    if group > 1 and not flash:
        key_RGTD, value_RGTD = (part.repeat_interleave(group, 1) for part in (key_RGTD, value_RGTD))
    out_RHSD = functional.scaled_dot_product_attention(
        query_RSHD.transpose(1, 2), key_RGTD, value_RGTD, None, dropout, True, enable_gqa=group > 1 and flash
    )
    return out_RHSD.transpose(1, 2).flatten(2)
