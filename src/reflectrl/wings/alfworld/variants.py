"""Variants of training games: the same household, with shuffled numbers and other places for its things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from reflectrl.core.types import named_seed
from reflectrl.wings.alfworld.game import Game, Receptacle, Thing
from reflectrl.wings.alfworld.house import House

MOVED = 0.5
"""Probability that a thing gets another place."""

Named = TypeVar("Named", Thing, Receptacle)


@lru_cache(maxsize=4096)
def redrawn(game: Game, variant: int) -> Game:
    """Return a variant of a game that is not won at the start.

    Numbers within a kind are shuffled (ALFWorld's domain randomisation), and half of the things lie in or on another
    receptacle that can hold them.
    """
    for attempt in range(100):
        rng = np.random.default_rng(named_seed("alfworld-variant", game.id, variant, attempt))
        candidate = _moved(
            replace(game, things=_renumbered(game.things, rng), receptacles=_renumbered(game.receptacles, rng)), rng
        )
        if not House(candidate).is_won():
            return candidate
    return game


def _renumbered(items: Sequence[Named], rng: np.random.Generator) -> tuple[Named, ...]:
    by_kind: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        by_kind.setdefault(item.kind, []).append(index)
    names = {}
    for indices in by_kind.values():
        for index, other in zip(indices, rng.permutation(indices), strict=True):
            names[index] = items[int(other)].name
    return tuple(replace(item, name=names[index]) for index, item in enumerate(items))


def _moved(game: Game, rng: np.random.Generator) -> Game:
    nested = {thing for pair in game.nested for thing in pair}
    times = [thing for thing, _ in game.inside]
    inside, at = set(game.inside), set(game.at)
    for thing, old in game.inside:
        about = game.things[thing]
        movable = "pickupable" in about.abilities and thing not in nested and times.count(thing) == 1
        if not movable or rng.random() >= MOVED:
            continue
        choices = [i for i, receptacle in enumerate(game.receptacles) if about.kind in receptacle.holds]
        if choices:
            new = int(rng.choice(choices))
            inside = inside - {(thing, old)} | {(thing, new)}
            at = {pair for pair in at if pair[0] != thing} | {(thing, game.receptacles[new].location)}
    return replace(game, inside=tuple(sorted(inside)), at=tuple(sorted(at)))
