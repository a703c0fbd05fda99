"""Keys and values that are kept: what a player has already read of an episode need not be encoded again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from reflectrl.models.packing import Ids, portions, shared_length

ROUNDING = 64
"""Buffers hold a multiple of so many tokens, so that they do not grow at every step."""

SLACK = 4
"""Buffers of growing prefixes take a quarter more than they need, lest they be copied at every step of an episode."""

CACHE = 4 * 2**30
"""Most bytes of keys and values that a player keeps, unless told otherwise."""

WORKING = 2 * 2**30
"""Most bytes of keys and values that a call takes beside what is kept; larger batches go in parts."""


class Prefix:
    """The keys and values of one growing sequence of tokens, in every layer.

    What is kept is the longest part that the next prompt shares with the tokens written last, so it needs no telling
    where the history ends: state, reflection and actions are written over by what comes next.

    Args:
        growing: whether longer prompts of the same episode are going to follow.

    Attributes:
        ids: the tokens whose keys and values are held.
        reserved: the number of tokens for which the next buffers have room at least.
    """

    def __init__(self, growing: bool = False) -> None:
        self.growing = growing
        self.ids: Ids = ()
        self.reserved = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._filled: list[int] = []

    def match(self, prompt: Ids, least: int = 1) -> int:
        """Cut back to what `prompt` shares (at least one of its tokens stays to be computed); returns its length.

        Fewer than `least` shared tokens are not worth keeping.
        """
        shared = min(shared_length(self.ids, prompt), len(prompt) - 1)
        self.crop(shared if shared >= least else 0)
        return len(self.ids)

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.ids = self.ids[:length]
        self._filled = [length] * len(self._filled)

    def hold(self, prompt: Ids) -> None:
        """Say which tokens have been appended; whatever was appended after them is forgotten."""
        self.ids = prompt
        self.crop(len(prompt))

    def reserve(self, tokens: int) -> None:
        """Make room for so many tokens in all: buffers that must grow take that size at once."""
        self.reserved = tokens

    def append(self, layer: int, key_TGD: Tensor, value_TGD: Tensor) -> tuple[Tensor, Tensor]:
        """Add new tokens' keys and values to a layer; returns all of the layer's, each (1, G, length, D), no copies."""
        if layer == len(self._keys):
            empty = key_TGD.new_empty(1, key_TGD.shape[1], 0, key_TGD.shape[2])
            self._keys.append(empty)
            self._values.append(empty)
            self._filled.append(0)
        start = self._filled[layer]
        end = start + key_TGD.shape[0]
        if end > self._keys[layer].shape[2]:
            needed = max(self.reserved, end)
            size = _rounded(needed + needed // SLACK if self.growing else needed)
            self._keys[layer] = _grown(self._keys[layer], start, size)
            self._values[layer] = _grown(self._values[layer], start, size)
        key, value = self._keys[layer][:, :, :end], self._values[layer][:, :, :end]
        key[0, :, start:] = key_TGD.transpose(0, 1)
        value[0, :, start:] = value_TGD.transpose(0, 1)
        self._filled[layer] = end
        return key, value

    def copy(self) -> Prefix:
        """A prefix of its own with the same content."""
        twin = Prefix(self.growing)
        twin.ids, twin._filled = self.ids, list(self._filled)
        twin._keys, twin._values = [key.clone() for key in self._keys], [value.clone() for value in self._values]
        return twin

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values so far, each (1, G, length, D), not copied."""
        end = self._filled[layer]
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]

    @property
    def nbytes(self) -> int:
        """Memory of the buffers, in bytes."""
        return sum(t.nbytes for t in (*self._keys, *self._values))

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.__init__(self.growing)  # type: ignore[misc]


def _rounded(tokens: int) -> int:
    return -(-tokens // ROUNDING) * ROUNDING


def _grown(old: Tensor, filled: int, size: int) -> Tensor:
    new = old.new_empty(*old.shape[:2], size, old.shape[3])
    new[:, :, :filled] = old[:, :, :filled]
    return new


class PrefixPool:
    """The prefixes of the episodes that are being played, within a bound on their memory.

    An episode's prefix goes when the episode does. When there is no more room, the episodes that came first keep
    theirs, and those that came later are encoded anew at each step: slower, with the same result.

    Args:
        token_bytes: memory of one token's keys and values in all layers.
        limit: most bytes that stay between calls.
        working: most bytes that a call takes beside them (a single row may need more).

    Attributes:
        peak: the most that prefixes took at a time so far, in bytes (copies made while writing not counted).
    """

    def __init__(self, token_bytes: int, limit: int, working: int = WORKING) -> None:
        self.token_bytes, self.limit, self.working = token_bytes, limit, working
        self.peak = 0
        self._of: WeakKeyDictionary[object, Prefix] = WeakKeyDictionary()

    def parts(
        self, episodes: Sequence[object], tokens: Sequence[int], growing: Sequence[bool]
    ) -> Iterator[tuple[slice, list[Prefix]]]:
        """The prefixes of some episodes, as many at a time as fit the bound: (which of them, their prefixes).

        Args:
            episodes: objects that live as long as the episodes.
            tokens: how many tokens each may come to hold in this call, copies counted.
            growing: whether an episode's prompts have a history; otherwise nothing is kept of it.
        """
        needs = [(count + count // SLACK + ROUNDING) * self.token_bytes for count in tokens]
        for rows in portions(needs, self.working):
            chosen = zip(episodes[rows], growing[rows], strict=True)
            prefixes = [self._of.setdefault(e, Prefix(growing=True)) if wanted else Prefix() for e, wanted in chosen]
            yield rows, prefixes
            passing = (p.nbytes for p, kept in zip(prefixes, growing[rows], strict=True) if not kept)
            self.peak = max(self.peak, self.nbytes + sum(passing))
            self._trim()

    def share_equal(self, asked: Sequence[Hashable], episodes: Sequence[object], read: Mapping[Any, object]) -> None:
        """Give the episodes whose prompt was read for another episode a copy of what that one holds.

        Args:
            asked: what each episode asked.
            read: what was computed, and for which episode.
        """
        for prompt, episode in zip(asked, episodes, strict=True):
            reader = read.get(prompt, episode)
            if reader is not episode and reader in self._of:
                self._of[episode] = self._of[reader].copy()
        self._trim()

    @property
    def nbytes(self) -> int:
        """Memory of the prefixes that are kept, in bytes."""
        return sum(prefix.nbytes for prefix in self._of.values())

    def _trim(self) -> None:
        """Drop the prefixes of the youngest episodes until the rest is within the limit."""
        total = 0
        for prefix in self._of.values():  # in the order in which the episodes began
            total += prefix.nbytes
            if total > self.limit:
                total -= prefix.nbytes
                prefix.clear()

    def clear(self) -> None:
        """Drop all prefixes, because the weights have changed."""
        self._of.clear()


def gather(prefixes: Sequence[Prefix], layer: int, room: int) -> tuple[Tensor, Tensor]:
    """A layer's keys and values of several prefixes in one buffer each, (B, G, longest + room, D), copied."""
    held = [prefix.layer(layer) for prefix in prefixes]
    longest = max(key.shape[2] for key, _ in held)
    _, heads, _, width = held[0][0].shape
    keys = held[0][0].new_zeros(len(held), heads, longest + room, width)
    values = torch.zeros_like(keys)
    for row, (key, value) in enumerate(held):
        keys[row, :, : key.shape[2]] = key[0]
        values[row, :, : value.shape[2]] = value[0]
    return keys, values
