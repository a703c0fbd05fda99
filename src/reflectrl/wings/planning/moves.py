"""Moves by name, for walking through a domain, and shortest plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

from reflectrl.wings.planning.distances import Distances
from reflectrl.wings.planning.wording import START, STATES, digit_words, relations, rush_hour_state


class Move(NamedTuple):
    """A move by name, and the state it leads to."""

    name: str
    state: Any


def moves(problem: Any, state: Any) -> list[Move]:
    """Return the moves from a state in the package's order, each name once."""
    named = dict(NAMED[problem.domain](problem, state))
    return [Move(name, after) for name, after in named.items()]


def plan(problem: Any, state: Any, distances: Distances, most: int = 100) -> list[Move]:
    """Return the first moves of a shortest way to the goal; none if there is no way."""
    steps: list[Move] = []
    [left] = distances([state])
    while left and len(steps) < most:
        options = moves(problem, state)
        depths = distances([option.state for option in options])
        left -= 1
        steps.append(options[depths.index(left)])
        state = steps[-1].state
    return steps


def _tiles(problem: Any, state: Any) -> Iterator[tuple[str, Any]]:
    for after in problem.moves(state):
        yield f"slide {state[after.index(0)]}", after


def _blocksworld(problem: Any, state: Any) -> Iterator[tuple[str, Any]]:
    before = set(relations(problem.render(state)))
    for after in problem.moves(state):
        words = set(relations(problem.render(after)))
        [lost], [gained] = before - words, words - before
        block, source, target = lost[0], lost[1], gained[1]
        if target == "h":
            yield (f"pick up {block}" if source == "t" else f"unstack {block} from {source}"), after
        else:
            yield (f"put down {block}" if target == "t" else f"stack {block} on {target}"), after


def _countdown(problem: Any, state: Any) -> Iterator[tuple[str, Any]]:
    for i, j in combinations(range(len(state)), 2):
        low, high = sorted((state[i], state[j]))
        rest = state[:i] + state[i + 1 : j] + state[j + 1 :]
        results = [(low, "+", high, low + high), (low, "*", high, low * high)]
        if high != low:
            results.append((high, "-", low, high - low))
        if high % low == 0:
            results.append((high, "/", low, high // low))
        for first, sign, second, result in results:
            name = f"{digit_words(first)} {sign} {digit_words(second)} = {digit_words(result)}"
            yield name, tuple(sorted((*rest, result)))


def _rush_hour(problem: Any, state: Any) -> Iterator[tuple[str, Any]]:
    vehicles = problem.moves.args[0]
    words = rush_hour_state(problem.render(state)).split()
    for after in problem.moves(state):
        [vehicle] = [i for i, (here, there) in enumerate(zip(state, after, strict=True)) if here != there]
        (row, column), (to_row, to_column) = state[vehicle], after[vehicle]
        down, right = to_row - row, to_column - column
        direction = (
            ("right" if right > 0 else "left") if vehicles[vehicle].horizontal else ("down" if down > 0 else "up")
        )
        yield f"{words[vehicle]} {direction} {abs(down + right)}", after


def _keys_doors(problem: Any, state: Any) -> Iterator[tuple[str, Any]]:
    for after in problem.moves(state):
        is_return = state[0] != START and after[0] == problem.moves.args[0].parent[state[0]]
        yield ("back" if is_return else f"through {after[0]}"), after


def _by_state(problem: Any, state: Any) -> Iterator[tuple[str, Any]]:
    """Name a move by the state that it leads to, which says all of it: a word, or an article."""
    for after in problem.moves(state):
        yield STATES[problem.domain](problem.render(after)), after


NAMED: dict[str, Callable[[Any, Any], Iterator[tuple[str, Any]]]] = {
    "tiles": _tiles,
    "blocksworld": _blocksworld,
    "countdown": _countdown,
    "rush_hour": _rush_hour,
    "keys_doors": _keys_doors,
    "word_ladder": _by_state,
    "wikispeedia": _by_state,
}
