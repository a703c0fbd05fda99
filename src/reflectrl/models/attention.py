"""Attention over concatenated tokens (N, H, D) of several sequences.

All other parts of a transformer look at one token at a time, so only attention needs to know which tokens belong
together. It is computed block by block, each over exactly the keys that it sees. Nothing is padded. On a CPU this is as
fast as a padded batch, except for many small blocks (for these, and for GPUs, see `batched.py`). During generation each
row has only a few new tokens, so all rows are attended together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reflectrl.models.branching import WORTH_BRANCHING, Texts, attend_texts, texts_of
from reflectrl.models.sharing import Block, KVCache, copy_all

Attend = Callable[..., Tensor]
"""(layer, queries (N, H, D), keys (N, G, D), values (N, G, D), dropout = 0, wanted = None) -> (N, H · D).

H is a multiple of G. If only some tokens' results are needed, `wanted` (W,) holds their indices in ascending order.
Queries and result then have W rows instead of N.
"""


recomputed: ContextVar[bool] = ContextVar("recomputed", default=False)
"""True while gradient checkpointing runs a layer. Checkpointing discards saved activations through its own hooks, and
torch calls only the innermost hooks, so attention must not add any then."""


@dataclass
class BlockAttention:
    """Attention of a forward pass over blocks of tokens. Gradients flow only in passes without caches.

    Args:
        blocks: each token sees its block's context and the tokens before it in the block.
        caches: the KV cache of each block, which holds its context. The block's own keys and values are appended.
            Blocks with the same cache must be adjacent. None if the contexts are earlier blocks of this pass.
    """

    blocks: Sequence[Block]
    caches: Sequence[KVCache] | None = None
    _masks: list[Tensor | None] = field(default_factory=list, init=False)
    _texts: list[Texts | None] = field(default_factory=list, init=False)

    def __call__(
        self,
        layer: int,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        dropout: float = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        lengths = [len(block.ids) for block in self.blocks]
        keys, values = ([part.transpose(0, 1)[None] for part in new.split(lengths)] for new in (key_NGD, value_NGD))
        if not self._masks:  # the same in every layer
            self._texts = [None if dropout else texts_of_wide(block) for block in self.blocks]
            self._masks = [
                None if texts else visible(block, query_NHD.detach())
                for block, texts in zip(self.blocks, self._texts, strict=True)
            ]
        outs, grouped = [], query_NHD.shape[1] != key_NGD.shape[1]
        for i, (query, token_indices) in enumerate(by_block(query_NHD, lengths, wanted)):
            block, mask, texts = self.blocks[i], self._masks[i], self._texts[i]
            if texts is not None:
                if len(query):
                    prompt = self._before(i, layer, keys, values)
                    outs.append(attend_texts(query, prompt, (keys[i], values[i]), texts, token_indices))
                continue
            if self.caches is not None:
                parts = [[cached] for cached in self.caches[i].append(layer, block.start, keys[i], values[i])]
            else:
                parts = [[*(tensors[b][:, :, :n] for b, n in block.context), tensors[i]] for tensors in (keys, values)]
            if not len(query):
                continue
            key, value = (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2) for pieces in parts)
            if token_indices is not None:
                mask = visible(block, query.detach(), token_indices)
            causal = mask is None and token_indices is None and len(query) > 1
            with kept_in_parts((key, value), parts):
                out_1HSD = functional.scaled_dot_product_attention(
                    query.transpose(0, 1)[None], key, value, mask, dropout, causal, enable_gqa=grouped
                )
            outs.append(out_1HSD[0].transpose(0, 1).flatten(1))
        return torch.cat(outs)

    def _before(self, i: int, layer: int, keys: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return keys and values (1, G, T, D) of the tokens before a block, from its cache or from earlier blocks."""
        block = self.blocks[i]
        if self.caches is not None:
            cached = self.caches[i].layers[layer][:, :, : block.start]
            return cached[:1], cached[1:]
        key, value = (torch.cat([tensors[b][:, :, :n] for b, n in block.context], 2) for tensors in (keys, values))
        return key, value


def texts_of_wide(block: Block) -> Texts | None:
    """Return the texts of a trie with enough nodes to attend them separately (`branching`); None for other blocks."""
    if block.trie is None or len(block.trie.ids) < WORTH_BRANCHING:
        return None
    return texts_of(block.trie)


def visible(block: Block, like: Tensor, wanted: Tensor | None = None) -> Tensor | None:
    """Return the additive mask (S, T + S) of a block: S tokens see the T tokens before the block and their own past.

    Return None if no mask is needed. A run of tokens at the start of its sequence is simply causal, and the last token
    of a run sees everything.

    Args:
        wanted: rows of the mask to return; None for all.
    """
    new, trie = len(block.ids), block.trie
    plain = not block.start if wanted is None else wanted.tolist() == [new - 1]
    if new == 1 or (trie is None and plain):
        return None
    own = torch.ones(new, new, dtype=torch.bool).tril() if trie is None else torch.from_numpy(trie.ancestors())
    own = own if wanted is None else own[wanted]
    mask = like.new_zeros(len(own), block.start + new)
    mask[:, block.start :].masked_fill_(~own.to(like.device), -torch.inf)
    return mask


def by_block(
    query_NHD: Tensor, lengths: Sequence[int], wanted: Tensor | None
) -> Iterable[tuple[Tensor, Tensor | None]]:
    """Return the queries of each block with the indices of their tokens in the block (None means all its tokens)."""
    if wanted is None:
        return [(query, None) for query in query_NHD.split(list(lengths))]
    indices, ends = wanted.cpu(), torch.tensor(lengths).cumsum(0)
    cuts = torch.searchsorted(indices, ends)[:-1]
    starts = ends - torch.tensor(lengths)
    parts = zip(query_NHD.tensor_split(cuts), indices.tensor_split(cuts), starts, strict=True)
    return [(query, part - start) for query, part, start in parts]


def kept_in_parts(
    concatenated: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]
) -> contextlib.AbstractContextManager[Any]:
    """Make autograd save the parts of concatenated keys and values, and concatenate them again in the backward pass.

    Contexts overlap, so the concatenated copies would take a quarter of the memory of a long episode's update. With
    dropout, torch saves tensors of other shapes, which are kept unchanged.
    """
    if not torch.is_grad_enabled() or recomputed.get() or all(len(pieces) == 1 for pieces in parts):
        return contextlib.nullcontext()
    parts_of = {
        (joined.data_ptr(), joined.shape): [part.detach() for part in pieces]
        for joined, pieces in zip(concatenated, parts, strict=True)
    }
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: parts_of.get((tensor.data_ptr(), tensor.shape), tensor.detach()),
        lambda saved: torch.cat(saved, 2) if isinstance(saved, list) else saved,
    )


class DecodingAttention:
    """Attention during generation: all rows together, over copies of their caches in a padded buffer.

    Text is generated in passes. In each pass every row adds some tokens (`advance`) and keeps some of these (`keep`).
    The last token of each row's prompt counts as the first pass. The caches themselves are not changed. When a row has
    finished, the last row of the buffer moves to its slot, so that only running rows are attended.

    Args:
        caches: one per row, holding the row's prompt.
        room: largest number of tokens that a row may add.
        fold: attend grouped queries as `folded` does.

    Attributes:
        pairs: visible query-key pairs of the latest pass.
    """

    def __init__(self, caches: Sequence[KVCache], room: int, device: torch.device, fold: bool = False) -> None:
        self.device, self.fold, self.pairs = device, fold, 0
        prompts = [len(cache.ids) for cache in caches]
        self.held, self.slots = [length - 1 for length in prompts], list(range(len(caches)))
        """For each running row: its number of tokens in the buffers, and its slot there."""
        room += max(prompts)
        self._layers: list[Tensor]
        """The buffer of each layer, (2, B, G, T, D)."""
        self._by_row: list[Tensor]
        """The same memory with rows as the first dimension. Caches in one tensor are copied into one tensor."""
        if caches[0].whole is not None:
            whole_BTL2GD = caches[0].whole.new_zeros(len(caches), room, *caches[0].whole.shape[1:])
            starts = [whole_BTL2GD[row, :length] for row, length in enumerate(prompts)]
            copy_all(starts, [cache.first(length) for cache, length in zip(caches, prompts, strict=True)])
            self._by_row, self._layers = [whole_BTL2GD], [*whole_BTL2GD.permute(2, 3, 0, 4, 1, 5)]
        else:
            self._layers = []
            for parts in zip(*(cache.layers for cache in caches), strict=True):
                _, heads, _, width = parts[0].shape
                self._layers.append(parts[0].new_zeros(2, len(caches), heads, room, width))
                for row, (part_2GTD, length) in enumerate(zip(parts, prompts, strict=True)):
                    self._layers[-1][:, row, :, :length] = part_2GTD[:, :, :length]
            self._by_row = [layer_2BGTD.transpose(0, 1) for layer_2BGTD in self._layers]
        self._inputs_BTLD: Tensor | None = None
        """Inputs of the layers' short convolutions."""
        if caches[0].inputs is not None:
            held = [cache.inputs[:length] for cache, length in zip(caches, prompts, strict=True)]  # type: ignore[index]
            self._inputs_BTLD = held[0].new_zeros(len(caches), room, *held[0].shape[1:])
            copy_all([self._inputs_BTLD[row, :length] for row, length in enumerate(prompts)], held)
            self._by_row.append(self._inputs_BTLD)
        slow = device.type == "cpu" and self._layers[0].dtype == torch.bfloat16
        self._least = 2 if slow else 1
        """Smallest number of queries per row. On CPUs, one query in bfloat16 takes up to ten times as long as two."""

    def advance(self, pending: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Begin a pass in which each row adds its `pending` tokens. Return all ids (N,) and positions (N,)."""
        running, wide = len(pending), max(self._least, *map(len, pending))
        rows = zip(self.slots, self.held, pending, strict=True)
        added = [(token, length + i, slot, i) for slot, length, ids in rows for i, token in enumerate(ids)]
        ids_N, positions_N, self._slots_N, self._depths_N = to_device(self.device, *zip(*added, strict=True))
        # Each query sees its row's tokens up to its own. Padding sees the first token: a softmax over none is NaN.
        last_RS = positions_N.new_zeros(running, wide)
        last_RS[self._slots_N, self._depths_N] = positions_N
        end = max(position for _, position, _, _ in added) + 1
        self._hidden_RST = torch.arange(end, device=self.device) > last_RS[..., None]
        self._places_N = positions_N
        self.pairs = sum(position + 1 for _, position, _, _ in added)
        return ids_N, positions_N

    def __call__(self, layer: int, query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, *_: object) -> Tensor:
        keys, values = self._layers[layer]
        keys[self._slots_N, :, self._places_N] = key_NGD
        values[self._slots_N, :, self._places_N] = value_NGD
        running, wide, end = self._hidden_RST.shape
        keys, values = keys[:running, :, :end], values[:running, :, :end]
        group = query_NHD.shape[1] // key_NGD.shape[1]
        if layer == 0:
            mask_RST = query_NHD.new_zeros(running, wide, end).masked_fill_(self._hidden_RST, -torch.inf)
            self._mask = mask_RST.repeat(1, group, 1) if self.fold else mask_RST[:, None]
        query_RSHD = query_NHD.new_zeros(running, wide, *query_NHD.shape[1:])
        query_RSHD[self._slots_N, self._depths_N] = query_NHD
        if self.fold:
            return folded(query_RSHD, keys, values, self._mask)[self._slots_N, self._depths_N]
        out_RHSD = functional.scaled_dot_product_attention(
            query_RSHD.transpose(1, 2), keys, values, self._mask, enable_gqa=group > 1
        )
        return out_RHSD.transpose(1, 2)[self._slots_N, self._depths_N].flatten(1)

    def convolve(self, layer: int, weight_D1K: Tensor, x_ND: Tensor) -> Tensor:
        """Compute a short convolution over the rows' tokens (`lookback.Lookback`)."""
        assert self._inputs_BTLD is not None
        inputs_BTD = self._inputs_BTLD[:, :, layer]
        inputs_BTD[self._slots_N, self._places_N] = x_ND.to(inputs_BTD.dtype)
        return convolved(weight_D1K, x_ND, inputs_BTD, self._slots_N, self._places_N)

    def keep(self, counts: Sequence[int], stay: Sequence[int]) -> None:
        """Keep the first `counts[row]` tokens that the latest pass added to each row, and continue the rows `stay`."""
        self.held = [self.held[row] + counts[row] for row in stay]
        self.slots = [self.slots[row] for row in stay]
        holes, moved = sorted(set(range(len(stay))) - set(self.slots)), list[tuple[int, int]]()
        for row, slot in enumerate(self.slots):
            if slot >= len(stay):
                self.slots[row] = holes.pop()
                moved.append((self.slots[row], slot))
        if moved:
            for buffer in self._by_row:
                copy_all([buffer[hole] for hole, _ in moved], [buffer[slot] for _, slot in moved])


def convolved(weight_D1K: Tensor, x_ND: Tensor, held_BTD: Tensor, row_N: Tensor, position_N: Tensor) -> Tensor:
    """Compute a short convolution of tokens whose rows are held in a buffer, at these rows and positions.

    Args:
        weight_D1K: as in `torch.nn.Conv1d`. The last of the K taps is for the token itself.
    """
    distance_K = torch.arange(weight_D1K.shape[-1] - 1, -1, -1, device=x_ND.device)
    at_NK = position_N[:, None] - distance_K
    window_NKD = held_BTD[row_N[:, None], at_NK.clamp(min=0)] * (at_NK >= 0)[..., None]
    return x_ND + (window_NKD.to(x_ND.dtype) * weight_D1K[:, 0].t().to(x_ND.dtype)).sum(1)


def folded(query_RSHD: Tensor, key_RGTD: Tensor, value_RGTD: Tensor, mask_RQT: Tensor, dropout: float = 0.0) -> Tensor:
    """Compute grouped-query attention (R, S, H · D) with the H / G queries of a key head folded into the sequence.

    Only the newest GPU kernels accept both a mask and shared key heads. Without such a kernel, torch materialises all
    scores and copies of the keys. Folded queries (R, G, H / G · S, D) have as many heads as the keys, so any kernel
    will do.

    Args:
        mask_RQT: additive mask (R, H / G · S, T): the rows of the S queries, repeated H / G times.
    """
    rows, wide, heads, width = query_RSHD.shape
    query_RGQD = query_RSHD.view(rows, wide, key_RGTD.shape[1], -1, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out_RGQD = functional.scaled_dot_product_attention(query_RGQD, key_RGTD, value_RGTD, mask_RQT[:, None], dropout)
    return out_RGQD.unflatten(2, (-1, wide)).permute(0, 3, 1, 2, 4).reshape(rows, wide, heads * width)


def to_device(device: torch.device, *columns: Sequence[int] | np.ndarray) -> tuple[Tensor, ...]:
    """Copy columns of integers to a device as tensors, in one asynchronous transfer."""
    joined = torch.from_numpy(np.concatenate([np.asarray(column, np.int64) for column in columns]))
    return joined.to(device, non_blocking=True).split([len(column) for column in columns])
