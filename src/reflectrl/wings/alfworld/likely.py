"""Where things are likely to be: what ALFWorld's training games teach anyone who has seen them all.

This is knowledge from outside the game that is played. The searching expert uses it, and `AlfworldEnv` tells it to the
players where `guide` is on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from reflectrl.wings.alfworld.beliefs import kind_of, number_of


@lru_cache(maxsize=1)
def likely_places() -> dict[str, list[str]]:
    """Kind of thing → kinds of receptacles, the most promising first.

    Promising is the share of receptacles of the kind that hold such a thing at the start of ALFWorld's training games,
    divided by the commands that a look takes (two where there is a door). `benchmarks/alfworld_places.py` counts it.
    """
    found: dict[str, list[str]] = json.loads(
        files("reflectrl.wings.alfworld").joinpath("likely_places.json").read_text(encoding="utf-8")
    )
    return found


def by_promise(places: Iterable[str], kind: str, prior: bool = True) -> list[str]:
    """Places in the order in which it is best to look there for a thing of a kind.

    Those of a kind of place stand together, by number; kinds of places that never held such a thing come last, by name.

    Args:
        prior: whether it is known where such things are likely to be; if not, all stand by name.
    """
    order = likely_places().get(kind, []) if prior else []
    rank = {place_kind: number for number, place_kind in enumerate(order)}
    return sorted(places, key=lambda p: (rank.get(kind_of(p), len(rank)), kind_of(p), number_of(p)))
