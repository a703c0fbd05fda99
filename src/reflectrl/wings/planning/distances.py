"""Exact numbers of moves to the goal, for states of a trial. One function per domain, by searches that are fast."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from reflectrl.wings.planning.slides import Slides
from reflectrl.wings.planning.trials import downloaded, package
from reflectrl.wings.planning.wording import relations

Distances = Callable[[Sequence[Any]], list[int | None]]
"""Function of states of a trial that returns the fewest moves from each to the goal; None if no way leads there."""


def distances(problem: Any) -> Distances:
    """Return the function that measures states of a trial. Making it does most of the work."""
    return MAKERS[problem.domain](problem)


# ---- 8-puzzle --------------------------------------------------------------------------------------------------------


class _Layers:
    """Boards by their distance from the solved one, breadth first, and only as far out as has been asked for."""

    def __init__(self) -> None:
        tiles = package("domains.tiles")
        self._slide = tiles.slide
        self._depths = {tiles.SOLVED: 0}
        self._border = [tiles.SOLVED]

    def __call__(self, board: Any) -> int | None:
        while board not in self._depths and self._border:
            reached = {near for border in self._border for near in self._slide(border)} - self._depths.keys()
            depth = self._depths[self._border[0]] + 1
            self._depths.update(dict.fromkeys(reached, depth))
            self._border = list(reached)
        return self._depths.get(board)


@lru_cache(maxsize=1)
def _layers() -> _Layers:
    return _Layers()


def _tiles(problem: Any) -> Distances:
    return lambda states: [_layers()(state) for state in states]


# ---- Blocksworld -----------------------------------------------------------------------------------------------------

Below = tuple[int, ...]
"""The support of each block: another block by its number, the table, or the hand."""
TABLE, HAND = -1, -2


def _arrangements(blocks: int) -> Iterator[Below]:
    """Yield all arrangements of blocks in towers, with an empty hand, and with each block in the hand."""
    towers: list[list[list[int]]] = [[]]
    for block in range(blocks):
        towers = [grown for stacks in towers for grown in _with_block(stacks, block)]
    for stacks in towers:
        yield _below(stacks, blocks)
    for lifted in range(blocks):
        for stacks in towers:
            if [lifted] in stacks:
                yield _below([stack for stack in stacks if stack != [lifted]], blocks)


def _with_block(stacks: list[list[int]], block: int) -> Iterator[list[list[int]]]:
    """Yield the arrangements with one more block: in each gap of each tower, or as a tower of its own."""
    yield [*stacks, [block]]
    for i, stack in enumerate(stacks):
        for gap in range(len(stack) + 1):
            yield [*stacks[:i], [*stack[:gap], block, *stack[gap:]], *stacks[i + 1 :]]


def _below(stacks: list[list[int]], blocks: int) -> Below:
    below = [HAND] * blocks
    for stack in stacks:
        for under, block in zip([TABLE, *stack], stack, strict=False):
            below[block] = under
    return tuple(below)


@lru_cache(maxsize=2)
def _block_graph(blocks: int) -> tuple[dict[Below, int], csr_array]:
    """Return the index of each arrangement, and the graph of moves, which is the same for every trial.

    Each arrangement with a block in the hand is joined to those where that block has been put somewhere. These are all
    moves, because a pick-up is the reverse of one.
    """
    indices = {below: index for index, below in enumerate(_arrangements(blocks))}
    sources, targets = [], []
    for below, index in indices.items():
        if HAND in below:
            lifted = below.index(HAND)
            clear = set(range(blocks)) - set(below) - {lifted}
            for under in (TABLE, *clear):
                sources.append(index)
                targets.append(indices[(*below[:lifted], under, *below[lifted + 1 :])])
    shape = (len(indices), len(indices))
    return indices, csr_array((np.ones(len(sources), dtype=np.int8), (sources, targets)), shape=shape)


def _arrangement(facts: str) -> Below:
    """Return the arrangement that facts of the package describe."""
    below = {word[0]: word[1] for word in relations(facts)}
    under = {"t": TABLE, "h": HAND} | {block: ord(block) - ord("A") for block in below}
    return tuple(under[below[block]] for block in sorted(below))


def _blocksworld(problem: Any) -> Distances:
    goal = _arrangement(problem.objective)
    indices, graph = _block_graph(len(goal))
    depths = dijkstra(graph, directed=False, unweighted=True, indices=indices[goal])

    def measure(states: Sequence[Any]) -> list[int | None]:
        return [int(depths[indices[_arrangement(problem.render(state))]]) for state in states]

    return measure


# ---- Countdown -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2**18)
def can_make(numbers: tuple[int, ...], target: int) -> bool:
    """Return whether the target can be made from all of these numbers."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, j in combinations(range(len(numbers)), 2):
        rest = numbers[:i] + numbers[i + 1 : j] + numbers[j + 1 :]
        for result in package_results(numbers[i], numbers[j]):
            if can_make(tuple(sorted((*rest, result))), target):
                return True
    return False


def package_results(low: int, high: int) -> Iterator[int]:
    """Yield what a move makes of two numbers."""
    yield from package("domains.countdown").combinations(low, high)


def _countdown(problem: Any) -> Distances:
    target = problem.solved.args[0]
    return lambda states: [len(state) - 1 if can_make(state, target) else None for state in states]


# ---- Rush Hour, and keys and doors -----------------------------------------------------------------------------------


def _rush_hour(problem: Any) -> Distances:
    slides = Slides(problem.moves.args[0], problem.start)
    codes, depths = slides.all_distances(problem.start)

    def measure(states: Sequence[Any]) -> list[int | None]:
        if not states:
            return []
        return [int(depth) for depth in depths[np.searchsorted(codes, slides.codes(slides.offsets(states)))]]

    return measure


def _searched(problem: Any) -> Distances:
    """Measure by the package's own search, which is quick where a trial has a few hundred states."""
    reached: dict[Hashable, int] = package("search").distances_to_goal(
        start=problem.start, moves=problem.moves, solved=problem.solved
    )
    return lambda states: [reached.get(state) for state in states]


# ---- word ladder, and Wikispeedia ------------------------------------------------------------------------------------


def _word_ladder(problem: Any) -> Distances:
    steps = package("domains.word_ladder").steps_from(downloaded("word_ladder"), problem.solved.args[0])
    return lambda states: [steps.get(state) for state in states]


@lru_cache(maxsize=1)
def _link_graph() -> tuple[dict[str, int], csr_array]:
    """Return the index of each article, and the graph of links turned round: from an article to those that link to it.

    Raises:
        UserError: the articles are not there.
    """
    links = downloaded("wikispeedia").links
    articles = sorted({*links, *(target for targets in links.values() for target in targets)})
    indices = {article: index for index, article in enumerate(articles)}
    pairs = [(indices[target], indices[article]) for article, targets in links.items() for target in targets]
    rows, columns = np.array(pairs).T
    return indices, csr_array((np.ones(len(pairs), np.int8), (rows, columns)), shape=(len(indices), len(indices)))


def _wikispeedia(problem: Any) -> Distances:
    indices, graph = _link_graph()
    clicks = dijkstra(graph, unweighted=True, indices=indices[problem.solved.args[0]])

    def measure(states: Sequence[Any]) -> list[int | None]:
        depths = [clicks[indices[state]] for state in states]
        return [int(depth) if np.isfinite(depth) else None for depth in depths]

    return measure


MAKERS: dict[str, Callable[[Any], Distances]] = {
    "tiles": _tiles,
    "blocksworld": _blocksworld,
    "countdown": _countdown,
    "rush_hour": _rush_hour,
    "keys_doors": _searched,
    "word_ladder": _word_ladder,
    "wikispeedia": _wikispeedia,
}
