"""Compare what the reference engine said in a finished sweep with the current native engine, without the reference.

    python -m benchmarks.alfworld_recheck DIR sweep.jsonl

`alfworld_sweep` keeps a digest of everything that the reference said in a game. This program makes the same walks in
the native engine alone (seconds per hundred games) and compares digests. A digest differs if the engine says something
else, or if a player or planner has changed and walks differently. Such games are removed from the file, so that the
next sweep compares them again. The old file is kept as FILE.before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectrl.wings.alfworld.game import Game
from reflectrl.wings.alfworld.house import House

from .alfworld_sweep import Pair, compiled, games, results, walked


class NativeReference:
    """The native engine, used in place of the reference."""

    def __init__(self, game: Game) -> None:
        self._game, self._house = game, House(game)

    def introduction(self, wording: str) -> str:
        """Start the game again and return the introduction."""
        self._house = House(self._game)
        return self._house.introduction(wording)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house, name)


def compared(source: Path, lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield (game, equal) for the lines' games in a folder; equal if the native engine gives the same digest."""
    digests = {line["game"]: line["digest"] for line in lines}
    for files in games(source):
        if files.place in digests:
            game = compiled(files)
            digest = walked(files.place, Pair(game, NativeReference(game)))["digest"]
            yield files.place, digest == digests[files.place]


def main(words: Sequence[str] | None = None) -> int:
    """Compare. Return 1 if some games must be walked with the reference again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("source", type=Path, metavar="DIR", help="folder of the official files, or an archive")
    parser.add_argument("sweep", type=Path, metavar="FILE", help="results of alfworld_sweep")
    args = parser.parse_args(words)
    lines = results(args.sweep)
    same = dict(compared(args.source, lines))
    if not lines or len(same) < len(lines):
        parser.error(f"{args.sweep} has {len(lines):,} games, of which {len(same):,} are in {args.source}")
    again = {game for game, equal in same.items() if not equal}
    for game in sorted(again):
        print(f"{game}: differs, will be compared again")
    print(f"{len(same) - len(again):,} of {len(same):,} games as the reference has them")
    if again:
        args.sweep.replace(args.sweep.with_name(f"{args.sweep.name}.before"))
        args.sweep.write_text("".join(json.dumps(line) + "\n" for line in lines if line["game"] not in again))
    return int(bool(again))


if __name__ == "__main__":
    sys.exit(main())
