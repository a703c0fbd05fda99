"""What prompts share: tokens within one forward pass (packing), keys and values from step to step (KV caches).

The steps of an episode share its history, so most of their tokens are the same tokens. In learning, a packing finds
that from the tokens alone: the longest prompt is a block of its own, and every other prompt branches off at the token
at which it departs; what branches off at one place is packed in the same way. In play, a KV cache holds what a player
has already read of an episode, and the next prompt is read from where it departs from that.
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
"""Fewer shared tokens than this are cheaper to encode twice than to branch off at."""

ROUNDING = 64
"""KV caches have room for a multiple of so many tokens, so that they do not grow at every step."""

REUSE = 16
"""A KV cache that shares fewer tokens than this with the next prompt is not continued from."""

CACHE = 4 * 2**30
"""Most bytes of keys and values that a player keeps between steps, unless told otherwise."""

WORKING = 2 * 2**30
"""Most bytes of keys and values that a call takes beside what is kept; larger batches go in parts."""


@dataclass(frozen=True)
class Block:
    """A run of new tokens. Each sees what `context` names, and those before it in its own block.

    Attributes:
        ids: the tokens.
        start: position of the first one in its prompt.
        context: spans of earlier blocks, in order, that make up the `start` tokens before it.
        trie: where the tokens are no run but several continuations of the context, how they branch.
    """

    ids: Ids
    start: int = 0
    context: tuple[Span, ...] = ()
    trie: Trie | None = None


@dataclass
class Packing(Sequence[Ids]):
    """Prompts packed into blocks; as a sequence, its items are the prompts.

    Attributes:
        blocks: a block stands behind all those that its context names.
        paths: for each prompt the spans that spell it.
    """

    blocks: list[Block] = field(default_factory=list)
    paths: list[tuple[Span, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, prompt: int) -> Ids:  # type: ignore[override]
        """The tokens of a prompt, put together again."""
        return tuple(t for block, count in self.paths[prompt] for t in self.blocks[block].ids[:count])

    def places(self, prompt: int) -> np.ndarray:
        """Where each token of a prompt stands among all blocks' tokens."""
        starts = [*accumulate((len(block.ids) for block in self.blocks), initial=0)]
        return np.concatenate([starts[block] + np.arange(count) for block, count in self.paths[prompt]])

    def ends(self) -> list[int]:
        """Where each prompt's last token stands among all blocks' tokens."""
        starts = [*accumulate((len(block.ids) for block in self.blocks), initial=0)]
        return [starts[path[-1][0]] + path[-1][1] - 1 for path in self.paths]

    def lengths(self) -> list[int]:
        """Tokens of each prompt, those before its first block included."""
        return [self.blocks[path[0][0]].start + sum(count for _, count in path) for path in self.paths]


def apart(prompts: Sequence[Ids]) -> Packing:
    """Every prompt as a block of its own; nothing is shared. The reference for `pack`."""
    return Packing([Block(ids) for ids in prompts], [((i, len(ids)),) for i, ids in enumerate(prompts)])


def pack(prompts: Sequence[Ids], least: int = LEAST) -> Packing:
    """Prompts in blocks that share what they have in common; equal prompts share everything."""
    packing = Packing(paths=[()] * len(prompts))
    arrays = [np.asarray(ids) for ids in prompts]
    waiting: list[tuple[list[int], int, tuple[Span, ...]]] = [([*range(len(prompts))], 0, ())] if prompts else []
    while waiting:
        group, offset, context = waiting.pop()
        spine = max(group, key=lambda i: len(prompts[i]))
        number = len(packing.blocks)
        packing.blocks.append(Block(tuple(prompts[spine][offset:]), offset, context))
        branches: dict[tuple[int, Ids], list[int]] = defaultdict(list)
        for i in group:
            shared = shared_length(arrays[i], arrays[spine], offset)
            if shared == len(prompts[i]):
                packing.paths[i] = (*context, (number, shared - offset))
            elif shared - offset >= least:
                branches[shared, ()].append(i)
            else:  # of these, only prompts with the same beginning can share anything worth it
                branches[offset, tuple(prompts[i][offset : offset + least])].append(i)
        for (shared, _), members in branches.items():
            stem = ((number, shared - offset),) if shared > offset else ()
            waiting.append((members, shared, (*context, *stem)))
    return packing


def portions(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Slices of rows in order, each with as many as are `most` together (and one at least)."""
    start = total = 0
    for row, size in enumerate(sizes):
        if row > start and total + size > most:
            yield slice(start, row)
            start, total = row, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))


def shared_length(first: Sequence[int] | np.ndarray, second: Sequence[int] | np.ndarray, offset: int = 0) -> int:
    """How many tokens two sequences share from the start, of which `offset` are known to be shared."""
    end = min(len(first), len(second))
    differ = np.flatnonzero(np.asarray(first[offset:end]) != np.asarray(second[offset:end]))
    return offset + int(differ[0]) if len(differ) else end


@dataclass(eq=False)
class KVCache:
    """The keys and values of one growing sequence of tokens, in every layer.

    What stays is the longest part that the next prompt shares with the last one, so nobody has to say where the history
    ends: state, reflection and actions are written over by what comes next.

    Attributes:
        ids: the tokens whose keys and values are held. Those that were appended behind them are forgotten, unless
            whoever appended them says so by setting `ids`.
        layers: keys and values of each layer, (2, G, tokens there is room for, D).
        whole: all layers in one tensor (tokens there is room for, L, 2, G, D), where they are parts of one (`extend`).
        nbytes: memory of the layers.
    """

    ids: Ids = ()
    layers: list[Tensor] = field(default_factory=list)
    nbytes: int = 0
    whole: Tensor | None = None

    def match(self, prompt: Ids, least: int = 1) -> int:
        """Cut back to what `prompt` shares with the tokens held; returns how many those are.

        At least one token of the prompt stays to be computed, and fewer than `least` shared ones are not worth keeping.
        """
        shared = min(shared_length(self.ids, prompt), len(prompt) - 1) if self.ids else 0
        self.ids = self.ids[:shared] if shared >= least else ()
        return len(self.ids)

    def copy(self, other: KVCache, count: int) -> None:
        """Hold the first `count` tokens that another one holds; neither knows of what the other reads next."""
        self.ids, room = other.ids[:count], count + -count % ROUNDING
        if other.whole is not None:
            self.hold(other.whole[:room].clone())
            return
        self.layers, self.whole = [layer[:, :, :room].clone() for layer in other.layers], None
        self.nbytes = sum(layer.nbytes for layer in self.layers)

    def hold(self, whole_TL2GD: Tensor) -> None:
        """Keep all layers in this tensor from now on; what was held is let go."""
        self.whole, self.layers = whole_TL2GD, [*whole_TL2GD.permute(1, 2, 3, 0, 4)]
        self.nbytes = whole_TL2GD.nbytes

    def append(self, layer: int, start: int, key_1GSD: Tensor, value_1GSD: Tensor) -> tuple[Tensor, Tensor]:
        """Put S new tokens' keys and values behind the first `start` ones of a layer.

        Returns:
            Keys and values of the layer from the first token to the last new one, (1, G, start + S, D), not copied.
        """
        _, heads, new, width = key_1GSD.shape
        if layer == len(self.layers):
            self.layers.append(key_1GSD.new_empty(2, heads, 0, width))
        end = start + new
        if end > self.layers[layer].shape[2]:
            larger = key_1GSD.new_empty(2, heads, end + -end % ROUNDING, width)
            larger[:, :, :start] = self.layers[layer][:, :, :start]
            self.nbytes += larger.nbytes - self.layers[layer].nbytes
            self.layers[layer], self.whole = larger, None
        held = self.layers[layer][:, :, :end]
        held[:1, :, start:], held[1:, :, start:] = key_1GSD, value_1GSD
        return held[:1], held[1:]

    def first(self, count: int) -> Tensor:
        """Keys and values of the first `count` tokens, (count, L, 2, G, D); not copied if they lie in one tensor."""
        if self.whole is not None:
            return self.whole[:count]
        return torch.stack([layer[:, :, :count] for layer in self.layers]).permute(3, 0, 1, 2, 4)


def extend(caches: Sequence[KVCache], starts: Sequence[int], new: Sequence[Tensor]) -> None:
    """Put new tokens' keys and values (S, L, 2, G, D) behind the first ones of each cache, in one call for all.

    Token by token, what a cache holds and what is put into it lies in one piece each, so that a GPU copies the pieces
    of all rows in a single launch.

    Args:
        starts: how many tokens of each cache stay.
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
    """Copy tensors into others of their shapes, in one call: torch's foreach copy, which has no public name."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def remainders(prompts: Sequence[Ids], caches: Sequence[KVCache]) -> Packing:
    """What is left to read of prompts of which KV caches hold the beginnings: a block each, without the beginning."""
    pairs = zip(prompts, caches, strict=True)
    blocks = [Block(prompt[len(cache.ids) :], len(cache.ids)) for prompt, cache in pairs]
    return Packing(blocks, [((i, len(block.ids)),) for i, block in enumerate(blocks)])


class KVCachePool:
    """The KV caches of live episodes, within a bound on their memory.

    An episode's cache goes when the episode does. When there is no more room, the episodes that came first keep theirs,
    and those that came later are computed anew at each step: slower, with the same result.

    Args:
        token_bytes: memory of one token's keys and values in all layers.
        limit: most bytes that stay between calls.
        working: most bytes that a call takes beside them (a single row may need more).

    Attributes:
        peak: the most that caches took at a time so far, in bytes (copies made while writing not counted).
    """

    def __init__(self, token_bytes: int, limit: int, working: int = WORKING) -> None:
        self.token_bytes, self.limit, self.working = token_bytes, limit, working
        self.peak = 0
        self._of: WeakKeyDictionary[object, KVCache] = WeakKeyDictionary()

    def lend(
        self, episodes: Sequence[object], tokens: Sequence[int], growing: Sequence[bool]
    ) -> Iterator[tuple[slice, list[KVCache]]]:
        """The caches of some episodes, as many at a time as fit the bound: (which of them, their caches).

        Args:
            episodes: objects that live as long as the episodes.
            tokens: how many tokens each may come to hold in this call, copies counted.
            growing: whether an episode's prompts have a history; otherwise nothing is kept of it.
        """
        needs = [(count + ROUNDING) * self.token_bytes for count in tokens]
        for rows in portions(needs, self.working):
            chosen = list(zip(episodes[rows], growing[rows], strict=True))
            caches = [self._of.setdefault(one, KVCache()) if kept else KVCache() for one, kept in chosen]
            yield rows, caches
            passing = sum(cache.nbytes for cache, (_, kept) in zip(caches, chosen, strict=True) if not kept)
            self.peak = max(self.peak, passing + sum(cache.nbytes for cache in self._of.values()))
            total = 0
            for episode, cache in list(self._of.items()):  # in the order in which the episodes began
                total += cache.nbytes
                if total > self.limit:
                    total -= cache.nbytes
                    self._of[episode] = KVCache()

    @property
    def nbytes(self) -> int:
        """Memory of the caches that are kept."""
        return sum(cache.nbytes for cache in self._of.values())

    def clear(self) -> None:
        """Drop all caches, because the weights have changed."""
        self._of.clear()
