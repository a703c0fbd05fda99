"""Packing: many prompts as blocks of tokens in which what they have in common stands once.

The steps of an episode share its history, so most of their tokens are the same tokens. A packing finds that from the
tokens alone: the longest prompt is a block of its own, and every other prompt branches off at the token at which it
departs; what branches off at one place is packed in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

Ids = tuple[int, ...]
Span = tuple[int, int]
"""(block, n): the first n tokens of an earlier block."""

LEAST = 16
"""Fewer shared tokens than this are cheaper to encode twice than to branch off at."""


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

    def places(self) -> np.ndarray:
        """Position of each token in its own sequence."""
        depths = np.arange(len(self.ids)) if self.trie is None else np.asarray(self.trie.depths, dtype=int)
        return self.start + depths


@dataclass(frozen=True)
class Trie:
    """Several short texts after one prompt, with their common beginnings merged; the last token of each is left out.

    Attributes:
        ids: token of each node; a parent stands before its children.
        parents: index of each node's parent, -1 for those that follow the prompt at once.
        depths: tokens between the prompt and the node.
        paths: for each text its nodes.
    """

    ids: Ids
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    def ancestors(self) -> np.ndarray:
        """(S, S): whether node j is node i or an ancestor of it."""
        seen = np.eye(len(self.ids), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen


def make_trie(texts: Sequence[Ids]) -> Trie:
    """The trie of some texts' token ids."""
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


@dataclass
class Packing(Sequence[Ids]):
    """Prompts packed into blocks; as a sequence, its items are the prompts.

    Attributes:
        blocks: a block stands behind all those that its context names.
        paths: for each prompt the spans that spell it.
    """

    blocks: list[Block] = field(default_factory=list)
    paths: list[tuple[Span, ...]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, prompt: int) -> Ids:  # type: ignore[override]
        """The tokens of a prompt, put together again."""
        return tuple(t for block, count in self.paths[prompt] for t in self.blocks[block].ids[:count])

    def places(self, prompt: int) -> np.ndarray:
        """Where each token of a prompt stands among all blocks' tokens."""
        if len(self._starts) != len(self.blocks):
            self._starts = np.cumsum([0, *(len(block.ids) for block in self.blocks[:-1])]).tolist()
        return np.concatenate([self._starts[block] + np.arange(count) for block, count in self.paths[prompt]])

    def ends(self) -> list[int]:
        """Where each prompt's last token stands among all blocks' tokens."""
        starts = [0, *accumulate(len(block.ids) for block in self.blocks)]
        return [starts[path[-1][0]] + path[-1][1] - 1 for path in self.paths]


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
