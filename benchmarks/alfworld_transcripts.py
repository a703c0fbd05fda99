"""Record what ALFWorld's reference engine says in generated games, for tests that run without it.

    python -m benchmarks.alfworld_transcripts tests/wings/alfworld/transcripts.jsonl.gz

There are two games of each task type and two walks in each: random commands, some of them illegal, then a shortest plan
to the win, then a few more. Each line of the file is a game. It has the game's files and, for every command, what the
unchanged reference said, which commands it then listed, and whether the game was won. Needs the extra `alfworld`, but
no torch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectrl.core.types import named_seed
from reflectrl.wings.alfworld.game import TYPES, Game
from reflectrl.wings.alfworld.generate import generate_game
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.reference import ReferenceHouse

from .alfworld_sweep import random_walk

GAMES, WALKS = 2, 2
"""Games of each type, and walks in each."""


class Recorder:
    """Recorder of a game in the reference engine. A native engine beside it is there to choose the commands.

    Attributes:
        walks: for each walk, the introduction, the first commands and the steps (command, said, commands, won).
    """

    def __init__(self, problem: str, game: Game) -> None:
        self.game, self.native, self.reference = game, House(game), ReferenceHouse(problem, game)
        self.walks: list[dict[str, Any]] = []

    def begin(self) -> str:
        """Start the game again, and begin a new walk."""
        self.native = House(self.game)
        said = self.reference.introduction(self.game.description)
        self.walks.append({"introduction": said, "commands": self.reference.admissible(), "steps": []})
        return said

    def do(self, command: str) -> str:
        """Carry out a command in both engines and return what the reference says."""
        self.native.do(command)
        said = self.reference.do(command)
        self.walks[-1]["steps"].append([command, said, self.reference.admissible(), self.reference.is_won()])
        return said


def record(seed: int, task_type: str) -> dict[str, Any]:
    """Generate a game and record walks in it."""
    game_id, problem, trajectory = generate_game(seed, task_type)
    recorder = Recorder(problem, compile_game(game_id, problem, trajectory))
    rng = random.Random(named_seed("alfworld-transcripts", game_id))
    for _ in range(WALKS):
        random_walk(recorder, rng)  # type: ignore[arg-type]
    return {"id": game_id, "problem": problem, "trajectory": trajectory, "walks": recorder.walks}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("out", type=Path, metavar="FILE", help="where to write (JSON lines, compressed)")
    out = parser.parse_args(arguments).out
    lines = []
    for seed in range(GAMES * len(TYPES)):
        lines.append(json.dumps(record(seed, TYPES[seed % len(TYPES)])) + "\n")
        print(f"{seed + 1} of {GAMES * len(TYPES)} games")
    out.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    main()
