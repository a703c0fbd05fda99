"""Sharing between prompts: of tokens within a forward pass (packing), and of keys and values between steps (KV caches).

The steps of an episode share its history, so most of their tokens are the same. In learning, packing finds common
prefixes from the tokens alone. The longest prompt is a block of its own, and every other prompt branches off at its
first different token. Prompts that branch off at the same place are packed in the same way. In play, a KV cache holds
the tokens of an episode that a player has already read, and the next prompt is read from its first different token on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from reflectrl.models.text_scoring import Trie

Ids = tuple[int, ...]
Span = tuple[int, int]
"""(block, n): the first n tokens of an earlier block."""

LEAST = 16
"""Shortest common prefix worth sharing. Below it, encoding the tokens twice is cheaper."""

ROUNDING = 64
"""Granularity of KV caches in tokens: room is a multiple of this, so that a cache does not grow at every step."""

REUSE = 16
"""Shortest common prefix with the next prompt for which a KV cache is reused."""

CACHE = 4 * 2**30
"""Default limit, in bytes, of the keys and values that a player keeps between steps."""

WORKING = 2 * 2**30
"""Limit, in bytes, of the keys and values that a call uses in addition to the kept ones. Larger batches are split."""


@dataclass(frozen=True)
class Block:
    """Run of new tokens. Each token sees the context and the earlier tokens of its block.

    Attributes:
        ids: the tokens.
        start: position of the first token in its prompt.
        context: spans of earlier blocks, in order, that make up the `start` tokens before the block.
        trie: branching of the tokens, if they are several continuations of the context; None for a plain run.
    """

    ids: Ids
    start: int = 0
    context: tuple[Span, ...] = ()
    trie: Trie | None = None

    def positions(self) -> np.ndarray:
        """Return the position of each token in its prompt. Tokens of a trie at equal depth have the same one."""
        if self.trie is not None:
            return self.start + np.asarray(self.trie.depths)
        return self.start + np.arange(len(self.ids))


@dataclass
class Packing(Sequence[Ids]):
    """Prompts packed into blocks. As a sequence, its items are the prompts.

    Attributes:
        blocks: the blocks. Each comes after all blocks of its context.
        paths: for each prompt, the spans that make it up.
    """

    blocks: list[Block] = field(default_factory=list)
    paths: list[tuple[Span, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, prompt: int) -> Ids:  # type: ignore[override]
        """Return the tokens of a prompt."""
        tokens = list[int]()
        for block, count in self.paths[prompt]:
            tokens += self.blocks[block].ids[:count]
        return tuple(tokens)

    def _starts(self) -> list[int]:
        """Return the index of each block's first token in the concatenation of all blocks."""
        return [*accumulate((len(block.ids) for block in self.blocks), initial=0)]

    def token_indices(self, prompt: int) -> np.ndarray:
        """Return the index of each token of a prompt in the concatenation of all blocks."""
        starts = self._starts()
        return np.concatenate([starts[block] + np.arange(count) for block, count in self.paths[prompt]])

    def ends(self) -> list[int]:
        """Return the index of each prompt's last token in the concatenation of all blocks."""
        starts, indices = self._starts(), list[int]()
        for path in self.paths:
            block, count = path[-1]
            indices.append(starts[block] + count - 1)
        return indices

    def lengths(self) -> list[int]:
        """Return the length of each prompt in tokens, including tokens before its first block."""
        lengths = list[int]()
        for path in self.paths:
            first, _ = path[0]
            lengths.append(self.blocks[first].start + sum(count for _, count in path))
        return lengths


def no_sharing(prompts: Sequence[Ids]) -> Packing:
    """Put every prompt in a block of its own, so that nothing is shared. The reference for `pack`."""
    return Packing([Block(ids) for ids in prompts], [((i, len(ids)),) for i, ids in enumerate(prompts)])


def pack(prompts: Sequence[Ids], least: int = LEAST) -> Packing:
    """Pack prompts into blocks with common prefixes shared. Equal prompts share everything.

    Args:
        least: shortest common prefix worth sharing.
    """
    packing = Packing(paths=[()] * len(prompts))
    if not prompts:
        return packing
    arrays = [np.asarray(ids) for ids in prompts]
    # Groups of prompts that share their first `offset` tokens, which the spans of the context hold.
    waiting: list[tuple[list[int], int, tuple[Span, ...]]] = [([*range(len(prompts))], 0, ())]
    while waiting:
        group, offset, context = waiting.pop()
        spine = max(group, key=lambda i: len(prompts[i]))
        block_index = len(packing.blocks)
        packing.blocks.append(Block(tuple(prompts[spine][offset:]), offset, context))
        branches: dict[tuple[int, Ids], list[int]] = defaultdict(list)
        for i in group:
            shared = shared_length(arrays[i], arrays[spine], offset)
            if shared == len(prompts[i]):
                packing.paths[i] = (*context, (block_index, shared - offset))
            elif shared - offset >= least:
                branches[shared, ()].append(i)
            else:  # too short to share with the longest prompt; only prompts with equal first tokens can share more
                branches[offset, tuple(prompts[i][offset : offset + least])].append(i)
        for (shared, _), members in branches.items():
            stem = ((block_index, shared - offset),) if shared > offset else ()
            waiting.append((members, shared, (*context, *stem)))
    return packing


def chunks(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yield slices of rows in order. Each has at least one row, and as many as fit into a total size of `most`."""
    start = total = 0
    for row, size in enumerate(sizes):
        if row > start and total + size > most:
            yield slice(start, row)
            start, total = row, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))


def shared_length(first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray, offset: int = 0) -> int:
    """Return the length of two sequences' common prefix. The first `offset` tokens are known to be equal."""
    end = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[offset:end]) != np.asarray(second[offset:end]))
    return offset + int(differ[0]) if len(differ) else end


@dataclass(eq=False)
class KVCache:
    """Keys and values of a growing sequence of tokens, in every layer.

    The cache keeps the longest prefix that the next prompt shares with the last one, so callers need not say where the
    history ends. State, reflection and actions are overwritten by the next prompt.

    Attributes:
        ids: tokens whose keys and values are held. Appending keys and values does not change `ids`: a caller that wants
            to keep them must extend `ids` itself.
        layers: keys and values of each layer, (2, G, capacity in tokens, D).
        whole: all layers as one tensor (capacity in tokens, L, 2, G, D), if they are views of one (`extend`).
        inputs: inputs of each layer's short convolution, (capacity in tokens, L, D), if the model has any.
    """

    ids: Ids = ()
    layers: list[Tensor] = field(default_factory=list)
    whole: Tensor | None = None
    inputs: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Memory of keys, values and inputs in bytes."""
        held = self.layers if self.whole is None else [self.whole]
        return sum(tensor.nbytes for tensor in held) + (0 if self.inputs is None else self.inputs.nbytes)

    def match(self, prompt: Ids, least: int = 1) -> int:
        """Cut the cache back to its common prefix with `prompt`, and return the prefix's length.

        At least one token of the prompt is left to be computed. A prefix shorter than `least` is dropped.
        """
        shared = min(shared_length(self.ids, prompt), len(prompt) - 1) if self.ids else 0
        self.ids = self.ids[:shared] if shared >= least else ()
        return len(self.ids)

    def copy(self, other: KVCache, count: int) -> None:
        """Copy the first `count` tokens of another cache. The two are independent afterwards."""
        self.ids, room = other.ids[:count], count + -count % ROUNDING
        if other.inputs is not None:
            self.inputs = other.inputs[:room].clone()
        if other.whole is not None:
            self.hold(other.whole[:room].clone())
            return
        self.layers, self.whole = [layer[:, :, :room].clone() for layer in other.layers], None

    def hold(self, whole_TL2GD: Tensor) -> None:
        """Store all layers in this tensor from now on. The previous tensors are released."""
        self.whole, self.layers = whole_TL2GD, [*whole_TL2GD.permute(1, 2, 3, 0, 4)]

    def append(self, layer: int, start: int, key_1GSD: Tensor, value_1GSD: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of S new tokens after the first `start` tokens of a layer.

        Returns:
            Views of the layer's keys and values up to the last new token, (1, G, start + S, D) each.
        """
        _, heads, new, width = key_1GSD.shape
        if layer == len(self.layers):
            self.layers.append(key_1GSD.new_empty(2, heads, 0, width))
        end = start + new
        if end > self.layers[layer].shape[2]:
            larger = key_1GSD.new_empty(2, heads, end + -end % ROUNDING, width)
            larger[:, :, :start] = self.layers[layer][:, :, :start]
            self.layers[layer], self.whole = larger, None
        view = self.layers[layer][:, :, :end]
        view[:1, :, start:], view[1:, :, start:] = key_1GSD, value_1GSD
        return view[:1], view[1:]

    def append_inputs(self, start: int, inputs_SLD: Tensor) -> None:
        """Append the inputs of short convolutions for S new tokens after the first `start` tokens."""
        end = start + len(inputs_SLD)
        if self.inputs is None or end > len(self.inputs):
            larger_TLD = inputs_SLD.new_empty(end + -end % ROUNDING, *inputs_SLD.shape[1:])
            if self.inputs is not None:
                larger_TLD[:start] = self.inputs[:start]
            self.inputs = larger_TLD
        self.inputs[start:end] = inputs_SLD

    def first(self, count: int) -> Tensor:
        """Return keys and values (count, L, 2, G, D) of the first `count` tokens. A view if they are in one tensor."""
        if self.whole is not None:
            return self.whole[:count]
        return torch.stack([layer[:, :, :count] for layer in self.layers]).permute(3, 0, 1, 2, 4)


def extend(caches: Sequence[KVCache], starts: Sequence[int], new: Sequence[Tensor]) -> None:
    """Append new tokens' keys and values (S, L, 2, G, D) to each cache, in one call for all caches.

    Tokens are the first dimension, so old and new tokens are contiguous in memory, and a GPU copies the pieces of all
    rows in a single launch.

    Args:
        starts: number of tokens of each cache to keep.
    """
    targets, sources = list[Tensor](), list[Tensor]()
    for cache, start, new_SL2GD in zip(caches, starts, new, strict=True):
        end = start + len(new_SL2GD)
        if cache.whole is None or end > len(cache.whole):
            before = cache.first(start) if start else None
            cache.hold(new_SL2GD.new_empty(end + -end % ROUNDING, *new_SL2GD.shape[1:]))
            if before is not None:
                targets.append(cache.first(start))
                sources.append(before)
        targets.append(cache.first(end)[start:])
        sources.append(new_SL2GD)
    copy_all(targets, sources)


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of the same shapes in one call (torch's foreach copy, which has no public name)."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def remainders(prompts: Sequence[Ids], caches: Sequence[KVCache]) -> Packing:
    """Pack the rest of each prompt that its KV cache does not hold, in a block per prompt."""
    pairs = zip(prompts, caches, strict=True)
    blocks = [Block(prompt[len(cache.ids) :], len(cache.ids)) for prompt, cache in pairs]
    return Packing(blocks, [((i, len(block.ids)),) for i, block in enumerate(blocks)])


class KVCachePool:
    """Pool of the KV caches of live episodes, with bounded memory.

    An episode's cache is freed together with the episode. When memory is used up, the oldest episodes keep their
    caches, and later ones are computed anew at each step. That is slower, with the same result.

    Args:
        token_bytes: bytes of a token's keys and values in all layers.
        limit: largest number of bytes kept between calls.
        working: largest number of bytes that a call uses in addition to those (a single row may need more).

    Attributes:
        peak: largest number of bytes in caches at any time so far, without copies made while writing.
    """

    def __init__(self, token_bytes: int, limit: int, working: int = WORKING) -> None:
        self.token_bytes, self.limit, self.working = token_bytes, limit, working
        self.peak = 0
        self._of: WeakKeyDictionary[object, KVCache] = WeakKeyDictionary()

    def lend(
        self, episodes: Sequence[object], tokens: Sequence[int], growing: Sequence[bool]
    ) -> Iterator[tuple[slice, list[KVCache]]]:
        """Yield the episodes' caches in batches that fit the bound, as (slice of the episodes, their caches).

        Args:
            episodes: objects that live as long as the episodes.
            tokens: largest number of tokens of each cache in this call, including copies.
            growing: True for episodes whose prompts have a history. Caches of the others are not kept.
        """
        needs = [(count + ROUNDING) * self.token_bytes for count in tokens]
        for rows in chunks(needs, self.working):
            caches, passing = list[KVCache](), list[KVCache]()
            for episode, grows in zip(episodes[rows], growing[rows], strict=True):
                cache = self._of.setdefault(episode, KVCache()) if grows else KVCache()
                caches.append(cache)
                if not grows:
                    passing.append(cache)
            yield rows, caches
            self.peak = max(self.peak, sum(cache.nbytes for cache in (*passing, *self._of.values())))
            total = 0
            for episode, cache in list(self._of.items()):  # in the order in which the episodes began
                total += cache.nbytes
                if total > self.limit:
                    total -= cache.nbytes
                    self._of[episode] = KVCache()

    @property
    def nbytes(self) -> int:
        """Bytes of all kept caches."""
        return sum(cache.nbytes for cache in self._of.values())

    def clear(self) -> None:
        """Drop all caches, because the weights have changed."""
        self._of.clear()
