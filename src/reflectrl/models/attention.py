"""Attention over tokens that lie one behind another, (N, H, D), whatever sequences they belong to.

Everything else in a transformer looks at one token at a time, so only attention needs to know which tokens belong
together. Blocks are attended one by one, each over exactly the keys that it sees: nothing is padded, and on a CPU that
is as fast as a padded batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn import functional

from reflectrl.models.packing import Packing, Trie
from reflectrl.models.prefix import Prefix, gather

Attend = Callable[..., Tensor]
"""(layer, queries (N, H, D), keys (N, G, D), values (N, G, D), dropout = 0) -> (N, H · D); H is a multiple of G."""


def sdpa(
    query_SHD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    mask_ST: Tensor | None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of one block, (S, H · D)."""
    query = query_SHD.transpose(0, 1)[None]
    grouped = query.shape[1] != key_1GTD.shape[1]
    out = functional.scaled_dot_product_attention(
        query, key_1GTD, value_1GTD, mask_ST, dropout, is_causal=causal, enable_gqa=grouped
    )
    return out[0].transpose(0, 1).flatten(1)


def visible(new: int, before: int, like: Tensor, trie: Trie | None = None) -> Tensor | None:
    """Additive mask (S, before + S): all that is before the block, and in it each token's own past.

    None where none is needed: a single token sees everything.

    Args:
        trie: how the tokens of the block branch; None for one run of tokens.
    """
    if new == 1:
        return None
    own = torch.ones(new, new, dtype=torch.bool).tril() if trie is None else torch.from_numpy(trie.ancestors())
    mask = like.new_zeros(new, before + new)
    mask[:, before:].masked_fill_(~own.to(like.device), -torch.inf)
    return mask


class PackedAttention:
    """Attention of a packing, through which gradients flow."""

    def __init__(self, packing: Packing) -> None:
        self.blocks = packing.blocks
        self.lengths = [len(block.ids) for block in self.blocks]
        self._masks: list[Tensor | None] = []

    @property
    def pairs(self) -> int:
        """Query-key pairs that are visible."""
        return sum(n * block.start + n * (n + 1) // 2 for n, block in zip(self.lengths, self.blocks, strict=True))

    def __call__(
        self, layer: int, query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, dropout: float = 0.0
    ) -> Tensor:
        queries = query_NHD.split(self.lengths)
        keys = [key.transpose(0, 1)[None] for key in key_NGD.split(self.lengths)]
        values = [value.transpose(0, 1)[None] for value in value_NGD.split(self.lengths)]
        masks = self._masks or self._make_masks(query_NHD)
        outs = []
        for i, (block, query, mask) in enumerate(zip(self.blocks, queries, masks, strict=True)):
            key, value = keys[i], values[i]
            if block.context:
                key = torch.cat([*(keys[b][:, :, :n] for b, n in block.context), key], 2)
                value = torch.cat([*(values[b][:, :, :n] for b, n in block.context), value], 2)
            outs.append(sdpa(query, key, value, mask, mask is None and len(query) > 1, dropout))
        return torch.cat(outs)

    def _make_masks(self, like: Tensor) -> list[Tensor | None]:
        """The same in every layer, so made once."""
        for block, n in zip(self.blocks, self.lengths, strict=True):
            plain = not block.context and block.trie is None
            self._masks.append(None if plain else visible(n, block.start, like.detach(), block.trie))
        return self._masks


class CachedAttention:
    """Attention of new tokens that continue prefixes; their keys and values are added to the prefixes.

    Args:
        prefixes: one per row; the same one may stand in several rows, which then follow one another.
        lengths: new tokens of each row.
        tries: for each row how its new tokens branch; None for one run of tokens.
    """

    def __init__(
        self, prefixes: Sequence[Prefix], lengths: Sequence[int], tries: Sequence[Trie | None] | None = None
    ) -> None:
        self.prefixes, self.lengths = prefixes, list(lengths)
        self.tries = tries or [None] * len(prefixes)
        self._masks: dict[int, Tensor | None] = {}
        self.pairs = 0

    def __call__(
        self, layer: int, query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, dropout: float = 0.0
    ) -> Tensor:
        outs = []
        spans = pairwise(accumulate(self.lengths, initial=0))
        for row, (prefix, (start, end)) in enumerate(zip(self.prefixes, spans, strict=True)):
            key, value = prefix.append(layer, key_NGD[start:end], value_NGD[start:end])
            query = query_NHD[start:end]
            if layer == 0:
                before = key.shape[2] - len(query)
                plain = not before and self.tries[row] is None
                self._masks[row] = None if plain else visible(len(query), before, query, self.tries[row])
                self.pairs += len(query) * before + len(query) * (len(query) + 1) // 2
            mask = self._masks[row]
            outs.append(sdpa(query, key, value, mask, mask is None and len(query) > 1, dropout))
        return torch.cat(outs)


class SteppingAttention:
    """Attention of one new token per row, over copies of the rows' prefixes in one padded buffer.

    The prefixes themselves stay as they are: what is written here is forgotten with it. When a row has finished, the
    last place of the buffer moves to its place, so that only running rows are attended.

    Args:
        prefixes: one per row.
        room: most tokens that a row may add.
    """

    def __init__(self, prefixes: Sequence[Prefix], room: int, device: torch.device) -> None:
        self.prefixes, self.room = prefixes, room
        self.lengths = torch.tensor([len(prefix.ids) for prefix in prefixes], device=device)
        self.places = torch.arange(len(prefixes), device=device)
        self._in_order = True
        self._layers: list[tuple[Tensor, Tensor]] = []
        self._mask: Tensor | None = None
        self._end = 0

    @property
    def pairs(self) -> int:
        """Query-key pairs of the latest step."""
        return int(self.lengths.sum())

    def __call__(
        self, layer: int, query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, dropout: float = 0.0
    ) -> Tensor:
        if layer == len(self._layers):
            self._layers.append(gather(self.prefixes, layer, self.room))
        running, end = len(self.places), self._end
        keys, values = self._layers[layer]
        if running == 1:  # the general form takes several times as long as what it does here
            keys[:1, :, end - 1] = key_NGD
            values[:1, :, end - 1] = value_NGD
        else:
            keys[self.places, :, self.lengths - 1] = key_NGD
            values[self.places, :, self.lengths - 1] = value_NGD
        query = query_NHD if self._in_order else torch.empty_like(query_NHD).index_copy_(0, self.places, query_NHD)
        grouped = query_NHD.shape[1] != key_NGD.shape[1]
        out = functional.scaled_dot_product_attention(
            query[:, :, None], keys[:running, :, :end], values[:running, :, :end], self._mask, enable_gqa=grouped
        )
        return (out if self._in_order else out[self.places]).flatten(1)

    def advance(self, dtype: torch.dtype) -> None:
        """Begin a step: each row is one token longer and sees its own tokens, the new one included."""
        self.lengths = self.lengths + 1
        self._end = int(self.lengths.max())
        seen = torch.arange(self._end, device=self.lengths.device)[None] < self.lengths[:, None]
        self._mask = None
        if not bool(seen.all()):
            mask = torch.zeros(len(seen), 1, 1, self._end, device=self.lengths.device, dtype=dtype)
            mask[self.places] = mask.masked_fill(~seen[:, None, None], -torch.inf)
            self._mask = mask

    def select(self, stay: Tensor) -> None:
        """Go on with these of the running rows."""
        self.lengths, self.places = self.lengths[stay], self.places[stay]
        moving = (self.places >= len(stay)).nonzero()[:, 0]
        free = torch.ones(len(stay), dtype=torch.bool, device=stay.device)
        free[self.places[self.places < len(stay)]] = False
        holes, origins = free.nonzero()[:, 0], self.places[moving]
        for tensor in (tensor for layer in self._layers for tensor in layer):
            tensor[holes, :, : self._end] = tensor[origins, :, : self._end]
        self.places[moving] = holes
        self._in_order = bool((self.places == torch.arange(len(stay), device=stay.device)).all())
