"""Count where things lie in the training games, to tell the searching expert where to look first.

    python -m benchmarks.alfworld_places STORE src/reflectrl/wings/alfworld/likely_places.json

STORE is what `reflectrl data alfworld` made from ALFWorld's official games. For every kind of thing, the kinds of
receptacles are sorted by a score: the share of these receptacles that hold such a thing, divided by the commands that a
look takes (two if there is a door). A receptacle counts only in games that have a thing of this kind somewhere.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from reflectrl.wings.alfworld.game import Game
from reflectrl.wings.alfworld.library import open_shelf


def likely_places(games: Iterable[Game]) -> dict[str, list[str]]:
    """Return, for each kind of thing, the kinds of receptacles with the most promising first."""
    hits: Counter[tuple[str, str]] = Counter()
    chances: Counter[tuple[str, str]] = Counter()
    doors: Counter[str] = Counter()
    all_of: Counter[str] = Counter()
    for game in games:
        inside = [{game.things[thing].kind for thing, r in game.inside if r == i} for i in range(len(game.receptacles))]
        present = set().union(*inside)
        for receptacle, kinds in zip(game.receptacles, inside, strict=True):
            all_of[receptacle.kind] += 1
            doors[receptacle.kind] += receptacle.openable
            chances.update((kind, receptacle.kind) for kind in present)
            hits.update((kind, receptacle.kind) for kind in kinds)
    scores: dict[str, dict[str, float]] = {}
    for (kind, place), count in hits.items():
        looks = 1 + doors[place] / all_of[place]
        scores.setdefault(kind, {})[place] = count / chances[kind, place] / looks
    return {kind: sorted(places, key=lambda place: (-places[place], place)) for kind, places in sorted(scores.items())}


def main(store: str, out: str) -> None:
    """Write the table as JSON."""
    shelf = open_shelf(store, "train")
    table = likely_places(shelf.game(entry.id) for entry in shelf.entries)
    Path(out).write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
