"""Proof that ALFWorld's games do not influence one another: each game alone, and all of them mixed in several ways.

    python -m benchmarks.alfworld_isolation [--games DIR] [--splits valid_seen,valid_unseen]

Every game of the splits is walked in both dialects: half of the commands are the searching expert's, the others random.
Alone, a game has a new environment and a store of its own, so it shares no object with other games. The mixed ways are:

- one environment plays the games one after another, in order, backwards and shuffled;
- all games are live at once, each in an environment, and a random one goes on; twice, in different orders;
- a single environment holds all games as saved states: at each step it restores a random one, takes a wrong turn from
  there, restores it again, goes on in it and saves it.

Compared at every step: the whole observation, the list of commands in its order, reward, events, and win. The exit code
is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectrl.core.config.folders import data_folder
from reflectrl.core.types import Task, UserError, named_seed
from reflectrl.wings.alfworld.env import DIALECTS, AlfworldEnv

Seen = tuple[Any, ...]
"""Text, commands, reward, events and win at a step of a walk."""

SETTINGS: dict[str, Any] = {"dialect": "both", "guide": True}


class Walk:
    """A walk through a game. Its commands depend on the seed and on what it has seen, and on nothing else.

    Attributes:
        seen: everything compared, in order.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.rng = task, random.Random(named_seed("alfworld-isolation", seed, task.id))
        self.seen: list[Seen] = []

    def begin(self, env: AlfworldEnv) -> None:
        """Start the game."""
        text, info = env.reset(seed=0, options={"task": self.task})
        self.seen.append((text, tuple(info["actions"])))

    def go_on(self, env: AlfworldEnv) -> None:
        """Take the next step."""
        by_expert = self.rng.random() < 0.5
        action = self.rng.randrange(len(env.legal_actions()))
        if by_expert:
            action = env.teacher.expert_action(env)
        text, reward, terminated, truncated, info = env.step(action)
        ended = (terminated, truncated, info["success"])
        self.seen.append((text, tuple(info["actions"]), reward, tuple(info["events"]), *ended))


def walked_alone(store: Path, tasks: Sequence[Task], seed: int) -> list[Walk]:
    """Walk every game in a new environment. The dialects read different copies of the store."""
    walks = []
    with tempfile.TemporaryDirectory() as temporary:
        for dialect in DIALECTS:
            shutil.copytree(store, Path(temporary) / dialect)
        for task in tasks:
            copy = Path(temporary) / task.payload.get("dialect", DIALECTS[0])
            walks.append(_walked(AlfworldEnv(games=str(copy), **SETTINGS), task, seed))
    return walks


def one_after_another(store: Path, tasks: Sequence[Task], seed: int) -> list[Walk]:
    """Walk all games, one after another, in one environment."""
    env = AlfworldEnv(games=str(store), **SETTINGS)
    return [_walked(env, task, seed) for task in tasks]


def side_by_side(store: Path, tasks: Sequence[Task], seed: int, order: int) -> list[Walk]:
    """Walk all games at once, each in an environment of its own. The next step is always a random game's."""
    walks = [Walk(task, seed) for task in tasks]
    envs = [AlfworldEnv(games=str(store), **SETTINGS) for _ in walks]
    for walk, env in zip(walks, envs, strict=True):
        walk.begin(env)
    live = list(zip(walks, envs, strict=True))
    rng = random.Random(order)
    while live:
        index = rng.randrange(len(live))
        walk, env = live[index]
        walk.go_on(env)
        if env.done:
            live.pop(index)
    return walks


def from_saved_states(store: Path, tasks: Sequence[Task], seed: int, order: int) -> list[Walk]:
    """Walk all games at once in one environment, which saves and restores them."""
    env = AlfworldEnv(games=str(store), **SETTINGS)
    walks, saved = [Walk(task, seed) for task in tasks], []
    for walk in walks:
        walk.begin(env)
        saved.append(env.save())
    rng = random.Random(order)
    live = list(range(len(walks)))
    while live:
        index = rng.choice(live)
        env.restore(saved[index])
        env.step(rng.randrange(len(env.legal_actions())))  # must not change the saved state
        env.restore(saved[index])
        walks[index].go_on(env)
        saved[index] = env.save()
        if env.done:
            live.remove(index)
    return walks


def _walked(env: AlfworldEnv, task: Task, seed: int) -> Walk:
    walk = Walk(task, seed)
    walk.begin(env)
    while not env.done:
        walk.go_on(env)
    return walk


def walked_together(store: Path, tasks: Sequence[Task], seed: int) -> Iterator[tuple[str, list[Walk]]]:
    """Yield the mixed ways: a name, and the walks."""
    shuffled = random.Random(seed).sample(tasks, len(tasks))
    yield "one after another", one_after_another(store, tasks, seed)
    yield "one after another, backwards", one_after_another(store, tasks[::-1], seed)
    yield "one after another, shuffled", one_after_another(store, shuffled, seed)
    yield "side by side", side_by_side(store, tasks, seed, order=1)
    yield "side by side, in another order", side_by_side(store, shuffled, seed, order=2)
    yield "from saved states", from_saved_states(store, shuffled, seed, order=3)


def compared(store: Path, splits: Sequence[str], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield for each way: its name, the number of games (in both dialects), of steps, of wins, and of games that differ
    from what they are alone.

    Args:
        store: folder of the games.
        splits: official sets.
    """
    env = AlfworldEnv(games=str(store), **SETTINGS)
    tasks = [task for split in splits for task in env.tasks(split)]
    expected = {(walk.task.split, walk.task.id): walk.seen for walk in walked_alone(store, tasks, seed)}
    for name, walks in [("alone, again", walked_alone(store, tasks, seed)), *walked_together(store, tasks, seed)]:
        differences = [walk for walk in walks if walk.seen != expected[walk.task.split, walk.task.id]]
        yield {
            "way": name,
            "games": len(walks),
            "steps": sum(len(walk.seen) - 1 for walk in walks),
            "wins": sum(bool(walk.seen[-1][-1]) for walk in walks),
            "differences": len(differences),
        }


def main(words: Sequence[str] | None = None) -> int:
    """Print a line per way. Return 1 if there are differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--games", default="", metavar="DIR", help="the store; the usual one if left out")
    parser.add_argument("--splits", default="valid_seen,valid_unseen", help="official sets, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="of the walks")
    args = parser.parse_args(words)
    differences = 0
    for number, row in enumerate(compared(data_folder("alfworld", args.games), args.splits.split(","), args.seed)):
        if number == 0:
            print("| way | games | steps | wins | differences |\n|---|---|---|---|---|")
        print(
            f"| {row['way']} | {row['games']} | {row['steps']:,} | {row['wins']} | {row['differences']} |", flush=True
        )
        differences += row["differences"]
    return int(differences > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"alfworld_isolation: {error}")
