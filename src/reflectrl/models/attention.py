"""Attention over tokens that lie one behind another, (N, H, D), whatever sequences they belong to.

Everything else in a transformer looks at one token at a time, so only attention needs to know which tokens belong
together. Blocks are attended one by one, each over exactly the keys that it sees: nothing is padded, and on a CPU that
is as fast as a padded batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from reflectrl.models.sharing import KVCache, Packing, gather

if TYPE_CHECKING:
    from reflectrl.models.text_scoring import Trie

Attend = Callable[..., Tensor]
"""(layer, queries (N, H, D), keys (N, G, D), values (N, G, D), dropout = 0, wanted = None) -> (N, H · D).

H is a multiple of G. Where only some tokens' results are wanted, `wanted` (W,) are their indices, ascending, and the
queries and the result are theirs.
"""


def sdpa(
    query_SHD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    mask_ST: Tensor | None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention of one block, (S, H · D)."""
    single = len(query_SHD) == 1 and query_SHD.dtype == torch.bfloat16 and query_SHD.device.type == "cpu"
    if single:  # which takes torch three times as long as two
        query_SHD, mask_ST, causal = query_SHD.expand(2, -1, -1), None, False
    query = query_SHD.transpose(0, 1)[None]
    grouped = query.shape[1] != key_1GTD.shape[1]
    out = functional.scaled_dot_product_attention(
        query, key_1GTD, value_1GTD, mask_ST, dropout, is_causal=causal, enable_gqa=grouped
    )
    out_SE = out[0].transpose(0, 1).flatten(1)
    return out_SE[:1] if single else out_SE


def visible(
    new: int, before: int, like: Tensor, trie: Trie | None = None, wanted: Tensor | None = None
) -> Tensor | None:
    """Additive mask (S, before + S): all that is before the block, and in it each token's own past.

    None where none is needed: the last token of a run sees everything.

    Args:
        trie: how the tokens of the block branch; None for one run of tokens.
        wanted: rows of the mask; None for all.
    """
    if new == 1 or (trie is None and wanted is not None and wanted.tolist() == [new - 1]):
        return None
    own = torch.ones(new, new, dtype=torch.bool).tril() if trie is None else torch.from_numpy(trie.ancestors())
    own = own if wanted is None else own[wanted]
    mask = like.new_zeros(len(own), before + new)
    mask[:, before:].masked_fill_(~own.to(like.device), -torch.inf)
    return mask


def by_block(
    query_NHD: Tensor, lengths: Sequence[int], wanted: Tensor | None
) -> Iterable[tuple[Tensor, Tensor | None]]:
    """The queries of each block, and whose they are by place in the block; None for all its tokens'."""
    if wanted is None:
        return [(query, None) for query in query_NHD.split(list(lengths))]
    indices, ends = wanted.cpu(), torch.tensor(lengths).cumsum(0)
    cuts = torch.searchsorted(indices, ends)[:-1]
    starts = ends - torch.tensor(lengths)
    parts = zip(query_NHD.tensor_split(cuts), indices.tensor_split(cuts), starts, strict=True)
    return [(query, part - start) for query, part, start in parts]


def kept_in_parts(
    wholes: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]
) -> contextlib.AbstractContextManager[Any]:
    """Within the block, autograd keeps the parts of concatenated keys and values, and joins them again backwards.

    Contexts overlap: kept whole, their copies would be a quarter of a long episode's update. (With dropout torch keeps
    other shapes of them, which stay as they are.)
    """
    if not torch.is_grad_enabled() or all(len(some) == 1 for some in parts):
        return contextlib.nullcontext()
    parts_of = {
        (whole.data_ptr(), whole.shape): [part.detach() for part in some]
        for whole, some in zip(wholes, parts, strict=True)
    }
    return torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: parts_of.get((tensor.data_ptr(), tensor.shape), tensor.detach()),
        lambda kept: torch.cat(kept, 2) if isinstance(kept, list) else kept,
    )


class PackedAttention:
    """Attention of a packing, through which gradients flow.

    Attributes:
        pairs: query-key pairs that are visible.
    """

    def __init__(self, packing: Packing) -> None:
        self.blocks = packing.blocks
        self.lengths = [len(block.ids) for block in self.blocks]
        self.pairs = sum(n * block.start + n * (n + 1) // 2 for n, block in zip(self.lengths, self.blocks, strict=True))
        self._masks: list[Tensor | None] = []

    def __call__(
        self,
        layer: int,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        dropout: float = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        queries = by_block(query_NHD, self.lengths, wanted)
        keys = [key.transpose(0, 1)[None] for key in key_NGD.split(self.lengths)]
        values = [value.transpose(0, 1)[None] for value in value_NGD.split(self.lengths)]
        if not self._masks:  # the same in every layer
            for block, n in zip(self.blocks, self.lengths, strict=True):
                run = not block.context and block.trie is None
                self._masks.append(None if run else visible(n, block.start, query_NHD.detach(), block.trie))
        outs = []
        for i, (block, (query, some), mask) in enumerate(zip(self.blocks, queries, self._masks, strict=True)):
            if not len(query):
                continue
            parts = [[*(of[b][:, :, :n] for b, n in block.context), of[i]] for of in (keys, values)]
            key, value = (some_parts[0] if len(some_parts) == 1 else torch.cat(some_parts, 2) for some_parts in parts)
            if some is not None:
                mask = visible(self.lengths[i], block.start, query.detach(), block.trie, some)
            causal = mask is None and some is None and len(query) > 1
            with kept_in_parts((key, value), parts):
                outs.append(sdpa(query, key, value, mask, causal, dropout))
        return torch.cat(outs)


class CachedAttention:
    """Attention of new tokens that continue what KV caches hold; their keys and values are added to the caches.

    Args:
        caches: one per row; the same one may stand in several rows, which then follow one another.
        lengths: new tokens of each row.
        tries: for each row how its new tokens branch; None for one run of tokens.

    Attributes:
        pairs: query-key pairs that are visible.
    """

    def __init__(
        self, caches: Sequence[KVCache], lengths: Sequence[int], tries: Sequence[Trie | None] | None = None
    ) -> None:
        self.caches, self.lengths = caches, list(lengths)
        self.tries = tries or [None] * len(caches)
        self._masks: dict[int, Tensor | None] = {}
        self.pairs = 0

    def __call__(
        self,
        layer: int,
        query_NHD: Tensor,
        key_NGD: Tensor,
        value_NGD: Tensor,
        dropout: float = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        outs = []
        queries = by_block(query_NHD, self.lengths, wanted)
        spans = pairwise(accumulate(self.lengths, initial=0))
        for row, (cache, (query, some), (start, end)) in enumerate(zip(self.caches, queries, spans, strict=True)):
            key, value = cache.append(layer, key_NGD[start:end], value_NGD[start:end])
            new, before, trie = end - start, key.shape[2] - (end - start), self.tries[row]
            if layer == 0:
                self._masks[row] = None if not before and trie is None else visible(new, before, query_NHD, trie)
                self.pairs += new * before + new * (new + 1) // 2
            if not len(query):
                continue
            mask = self._masks[row] if some is None else visible(new, before, query, trie, some)
            causal = mask is None and some is None and new > 1
            outs.append(sdpa(query, key, value, mask, causal, dropout))
        return torch.cat(outs)


class DecodingAttention:
    """Attention of texts that are being written: of all rows together, over copies of their caches in a padded buffer.

    Texts are written in passes: each row adds some tokens (`advance`), of which some are kept (`keep`). The last token
    of each row's prompt counts as the first such pass. The caches themselves stay as they are. When a row has finished,
    the last place of the buffer moves to its place, so that only running rows are attended.

    Args:
        caches: one per row.
        room: most tokens that a row may add.
    """

    def __init__(self, caches: Sequence[KVCache], room: int, device: torch.device) -> None:
        self.caches, self.room = list(caches), room
        self.lengths = torch.tensor([len(cache.ids) - 1 for cache in caches], device=device)
        self.slots = torch.arange(len(caches), device=device)
        self.pairs = 0
        self._layers: list[tuple[Tensor, Tensor]] = []

    def advance(self, counts: Sequence[int]) -> Tensor:
        """Begin a pass in which each row adds so many tokens; returns the positions (N,) of these."""
        device = self.lengths.device
        counts_R = torch.tensor(counts, device=device)
        rows_N = torch.arange(len(counts), device=device).repeat_interleave(counts_R)
        before_R = counts_R.cumsum(0) - counts_R
        self._depths_N = torch.arange(len(rows_N), device=device) - before_R[rows_N]
        self._slots_N, self._places_N = self.slots[rows_N], self.lengths[rows_N] + self._depths_N
        self._end, self._wide = int((self.lengths + counts_R).max()), max(counts)
        self._mask: Tensor | None = None
        self.pairs = int(self._places_N.sum()) + len(rows_N)
        return self._places_N

    def __call__(self, layer: int, query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, *_: object) -> Tensor:
        if layer == len(self._layers):
            self._layers.append(gather(self.caches, layer, self.room))
        keys, values = self._layers[layer]
        keys[self._slots_N, :, self._places_N] = key_NGD
        values[self._slots_N, :, self._places_N] = value_NGD
        if layer == 0:  # each row's tokens up to its own; queries that fill up see the first key
            last_RS = self.lengths.new_zeros(len(self.slots), self._wide)
            last_RS[self._slots_N, self._depths_N] = self._places_N
            hidden = torch.arange(self._end, device=query_NHD.device) > last_RS[:, None, :, None]
            zeros = torch.zeros(hidden.shape, device=query_NHD.device, dtype=query_NHD.dtype)
            self._mask = zeros.masked_fill_(hidden, -torch.inf)
        running, at_N = len(self.slots), (self._slots_N, self._depths_N)
        query_RSHD = query_NHD.new_zeros(running, self._wide, *query_NHD.shape[1:])
        query_RSHD[at_N] = query_NHD
        out_RHSD = functional.scaled_dot_product_attention(
            query_RSHD.transpose(1, 2),
            keys[:running, :, : self._end],
            values[:running, :, : self._end],
            self._mask,
            enable_gqa=query_NHD.shape[1] != key_NGD.shape[1],
        )
        return out_RHSD.transpose(1, 2)[at_N].flatten(1)

    def keep(self, counts: Sequence[int], stay: Sequence[int]) -> None:
        """Keep so many of the tokens that the latest pass has added to each row, and go on with these of the rows."""
        device = self.lengths.device
        staying = torch.tensor(stay, dtype=torch.long, device=device)
        self.lengths = (self.lengths + torch.tensor(counts, device=device))[staying]
        if not self._layers:  # nothing is copied yet
            self.caches, self.slots = [self.caches[row] for row in stay], torch.arange(len(stay), device=device)
            return
        self.slots = self.slots[staying]
        moving = (self.slots >= len(stay)).nonzero()[:, 0]
        free = torch.ones(len(stay), dtype=torch.bool, device=device)
        free[self.slots[self.slots < len(stay)]] = False
        holes, origins = free.nonzero()[:, 0], self.slots[moving]
        if len(holes):
            for tensor in (tensor for layer in self._layers for tensor in layer):
                tensor[holes] = tensor[origins]
            self.slots[moving] = holes
