"""Unseen rooms for machines without valid_unseen: a store that keeps some scenes out of training.

    python -m benchmarks.alfworld_unseen STORE OUT 7

STORE is what `reflectrl data alfworld` made of ALFWorld's official games. OUT gets the same games, but train,
valid_train and valid_seen without the scenes (floor plans) whose number ends in that digit; the games of train and
valid_train in those scenes become its valid_unseen. A recipe with `env.games = OUT` then learns without a tenth of the
rooms, of every sort, and `eval.splits = ["valid_unseen"]` judges it in those.

The prior over places was counted in all rooms. To keep it from knowing the unseen ones, count it again in OUT
(`benchmarks.alfworld_places`), in a copy of the source.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reflectrl.wings.alfworld.library import fill, open_shelf, require_fillable


def split_by_scene(store: Path, ending: str) -> dict[str, dict[str, str]]:
    """Split → game id → the game's line, with the scenes whose number ends so in valid_unseen alone."""
    games: dict[str, dict[str, str]] = {"valid_unseen": {}}
    for split in ("train", "valid_train", "valid_seen"):
        lines = open_shelf(store, split).lines()
        unseen = {game_id: line for game_id, line in lines.items() if scene_of(game_id).endswith(ending)}
        games[split] = {game_id: line for game_id, line in lines.items() if game_id not in unseen}
        if split != "valid_seen":  # the test's own games are shown to nobody before
            games["valid_unseen"] |= unseen
    return games


def scene_of(game_id: str) -> str:
    """The number of the scene in an official id, as "304" of "pick_two_obj_and_place-CD-None-Desk-304/trial_1"."""
    return game_id.partition("/")[0].rpartition("-")[2]


def main(store: str, out: str, ending: str) -> None:
    """Write the store."""
    require_fillable(Path(out), generated=False, replace=True)
    fill(Path(out), split_by_scene(Path(store), ending), replace=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
