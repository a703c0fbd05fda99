"""Does a driver of DangerousTaxi read the walls, or only its destination? Comparison with a driver that sees no walls.

    python -m benchmarks.wall_blind runs/taxi-maps-smollm/episodes/eval-sft-*-test-full-greedy.jsonl

This plays every task of the recorded episodes with a driver that goes as the expert would if there were no walls
(sideways first). It counts the tasks that this driver wins and the tasks that the recorded player won.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import Episode, Task, UserError
from reflectrl.wings.taxi.env import TaxiEnv
from reflectrl.wings.taxi.world import City


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files with episodes of evaluations, on random maps of the default density of walls."""


def wins_without_walls(env: TaxiEnv, task: Task) -> bool:
    """Return whether a driver that sees no walls wins a task. It drives into the first wall in its way."""
    env.reset(options={"task": task})
    empty = City(frozenset(), env.city.landmarks)
    while True:
        action = env.legal_actions().index(empty.best_action(env.ride))
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return bool(info["success"])


def compared(env: TaxiEnv, episodes: Iterable[Episode]) -> Counter[tuple[bool, bool]]:
    """Count tasks by (won by the driver that sees no walls, won by the recorded player)."""
    return Counter((wins_without_walls(env, episode.task), episode.success) for episode in episodes)


def main(settings: Settings) -> None:
    """Print a line for each file."""
    env = TaxiEnv(maps="random")
    found = [(file, compared(env, read_episodes(file))) for file in settings.files]
    print("| player | tasks | sees no walls wins | player wins | of these, the other wins too |")
    print("|---|---|---|---|---|")
    for file, won in found:
        both = won[True, True]
        print(f"| {file} | {won.total()} | {both + won[True, False]} | {both + won[False, True]} | {both} |")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        print(f"wall_blind: {error}", file=sys.stderr)
        sys.exit(2)
