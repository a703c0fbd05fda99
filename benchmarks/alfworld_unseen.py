"""Make unseen rooms for machines without valid_unseen: a store that keeps some scenes out of training.

    python -m benchmarks.alfworld_unseen STORE OUT 7

STORE is what `reflectrl data alfworld` made from ALFWorld's official games. OUT gets the same games, except that train,
valid_train and valid_seen lose the scenes (floor plans) whose number ends in the given digit. The games of train and
valid_train in these scenes become valid_unseen. A recipe with `env.games = OUT` then learns without a tenth of the
rooms of every kind, and `eval.splits = ["valid_unseen"]` evaluates in those rooms.

The prior over places was counted in all rooms. So that it knows nothing of the unseen ones, count it again in OUT
(`benchmarks.alfworld_places`), in a copy of the source.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reflectrl.wings.alfworld.library import fill, open_shelf, require_fillable


def split_by_scene(store: Path, ending: str) -> dict[str, dict[str, str]]:
    """Return split → game id → the game's line. Scenes whose number ends with `ending` are in valid_unseen only."""
    games: dict[str, dict[str, str]] = {"valid_unseen": {}}
    for split in ("train", "valid_train", "valid_seen"):
        lines = open_shelf(store, split).lines()
        unseen = {game_id: line for game_id, line in lines.items() if scene_of(game_id).endswith(ending)}
        games[split] = {game_id: line for game_id, line in lines.items() if game_id not in unseen}
        if split != "valid_seen":  # the test split's own games stay out of the new split
            games["valid_unseen"] |= unseen
    return games


def scene_of(game_id: str) -> str:
    """Return the number of the scene in an official id: "304" for "pick_two_obj_and_place-CD-None-Desk-304/trial_1"."""
    return game_id.partition("/")[0].rpartition("-")[2]


def main(store: str, out: str, ending: str) -> None:
    """Write the store."""
    require_fillable(Path(out), generated=False, replace=True)
    fill(Path(out), split_by_scene(Path(store), ending), replace=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
