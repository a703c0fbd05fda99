"""Actions of TextArena's games. The package lists none: it reads free text, and looks for [brackets]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product
from typing import Any

Candidates = Callable[[Any], Sequence[str]]
"""Function that lists the actions possible now, given the game (a `textarena.Env` without wrappers)."""

WAYS = ("up", "down", "left", "right")


def _cells(game: Any) -> list[str]:
    """Return the lights of LightsOut."""
    return [f"{row} {column}" for row, column in product(range(game.size), repeat=2)]


def _hidden(game: Any) -> list[str]:
    """Return the cells of Minesweeper that are not revealed."""
    return [f"{row} {col}" for row, col in product(range(game.rows), range(game.cols)) if not game.revealed[row][col]]


def _numbers(game: Any) -> list[str]:
    """Return the numbers of GuessTheNumber that were not tried."""
    return [str(n) for n in range(game.min_number, game.max_number + 1) if n not in game.guessed_numbers]


LISTED: dict[str, Candidates] = {
    "2048": lambda game: WAYS,
    "Blackjack": lambda game: ("hit", "stand"),
    "FrozenLake": lambda game: WAYS,
    "GuessTheNumber": _numbers,
    "LightsOut": _cells,
    "Minesweeper": _hidden,
    "Secretary": lambda game: ("accept", "continue"),
    "Sokoban": lambda game: WAYS,
    "ThreeCardMonte": lambda game: [str(cup) for cup in range(game.num_cups)],
    "TowerOfHanoi": lambda game: [" ".join(pair) for pair in permutations("ABC", 2)],
}
"""Candidates by a game's name without its version. Impossible moves stay in if the game is about finding them out."""


def listed(game: str) -> Candidates | None:
    """Return the function that lists a game's actions, by its id ("FrozenLake-v0-hardcore"); None if unknown."""
    return LISTED.get(game.partition("-v")[0])
