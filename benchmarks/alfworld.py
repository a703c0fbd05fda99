"""Speed and memory of the native ALFWorld engine, beside the reference engine on the same games and commands.

    python -m benchmarks.alfworld --games DIR

DIR holds the official files (folders or archives), or is a store that `reflectrl data alfworld` made. Without --games,
games are generated. A store lacks the files that the reference engine reads; `--source` names the official files in
that case. Without the extra `alfworld`, or without those files, the rows of the reference are left out. `--json` needs
no torch.

Times are CPU seconds. Both engines compute in one thread and never wait, so other load on the machine matters less.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core.advice import install
from reflectrl.wings.alfworld.env import AlfworldEnv
from reflectrl.wings.alfworld.game import Game, to_json
from reflectrl.wings.alfworld.generate import generate_game
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.library import fill, open_shelf, splits_in
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.reference import ReferenceHouse
from reflectrl.wings.alfworld.sources import PROBLEM, TRAJECTORY, open_sources

if TYPE_CHECKING:  # brings torch
    from .settings import Settings

STEPS = 50
"""Commands per walk in the native engine. Memory is measured after STEPS - 1 commands per environment."""
PAGE = 4096
"""Page size in bytes: Linux reports a process's memory in pages."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """Options of the benchmark."""

    games: Path | None = field(default=None, metadata={"help": "official files, or a store (default: generated games)"})
    source: Path | None = field(default=None, metadata={"help": "official files, if --games is a store"})
    limit: int = field(default=140, metadata={"help": "so many games are timed"})
    environments: int = field(default=1000, metadata={"help": "so many live environments for the measure of memory"})
    reference: int = field(default=4, metadata={"help": "games in the reference engine"})
    walk: int = field(default=20, metadata={"help": "commands of each of these"})
    repetitions: int = field(default=5, metadata={"help": "of every native measurement; medians are shown"})


@dataclass(frozen=True)
class Sample:
    """Games to measure: a store, its largest split, and the files at hand as game id → (problem, trajectory)."""

    store: Path
    split: str
    files: dict[str, tuple[str, dict[str, Any]]]

    def games(self, limit: int) -> list[Game]:
        """Return at most `limit` games, spread evenly over the split."""
        shelf = open_shelf(self.store, self.split)
        return [shelf.game(entry.id) for entry in _spread(shelf.entries, limit)]


def rows(settings: Settings) -> list[Row]:
    """Return the rows of `reflectrl bench alfworld`, on generated games."""
    return measured(Asked(limit=60, environments=200, reference=2, repetitions=settings.repetitions))


def measured(asked: Asked) -> list[Row]:
    """Return one row per measurement."""
    with tempfile.TemporaryDirectory() as folder:
        sample = _sample(asked, Path(folder))
        games = sample.games(asked.limit)
        return [
            _memory(sample, asked.environments),
            _row("steps/s, engine", len(games), [_native_speed(games) for _ in range(asked.repetitions)]),
            _row("steps/s, environment", len(games), [_env_speed(sample, games) for _ in range(asked.repetitions)]),
            _row("reset from a store, ms", len(games), _resets(sample, games, asked.repetitions)),
            *_with_files(sample, [game for game in games if game.id in sample.files], asked),
        ]


def _row(what: str, games: int, values: list[float]) -> Row:
    """Return the median and the worst 5 %: the slowest times, or the lowest speeds."""
    ordered = sorted(values, reverse=what.startswith("steps/s"))
    return {
        "what": what,
        "games": games,
        "median": statistics.median(values),
        "worst 5 %": ordered[-1 - len(values) // 20],
    }


# ---- games -----------------------------------------------------------------------------------------------------------


def _sample(asked: Asked, folder: Path) -> Sample:
    """Return the store that was named, or make one from the official files or from generated games."""
    store = asked.games if asked.games and splits_in(asked.games) else None
    source = asked.source or (None if store else asked.games)
    count = max(asked.limit, asked.environments)
    problems = _official(source) if source else _generated(count) if store is None else iter(())
    files: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {}
    for split, game_id, problem, trajectory in problems:
        files.setdefault(split, {})[game_id] = problem, trajectory
    if store is None:
        store = folder
        fill(store, {split: _lines(dict(_spread(list(games.items()), count))) for split, games in files.items()})
    split = max(splits_in(store), key=lambda split: len(open_shelf(store, split).entries))
    return Sample(store, split, files.get(split, {}))


def _spread(items: Sequence[Any], limit: int) -> list[Any]:
    """Pick at most `limit` items, spread evenly."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def _lines(files: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, str]:
    return {game_id: to_json(compile_game(game_id, *texts)) for game_id, texts in files.items()}


def _official(source: Path) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    with open_sources([source]) as (files, _):
        for game_path in sorted(files):
            if files[game_path].keys() >= {PROBLEM, TRAJECTORY}:
                trajectory = json.loads(files[game_path][TRAJECTORY]())
                yield game_path.split, game_path.id, files[game_path][PROBLEM]().decode("utf-8"), trajectory


def _generated(count: int) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    for seed in range(count):
        yield "train", *generate_game(seed)


# ---- the native engine -----------------------------------------------------------------------------------------------


def _native_speed(games: Sequence[Game]) -> float:
    rng = random.Random(0)
    houses = [House(game) for game in games]
    gc.collect()
    begun = time.process_time()
    for house in houses:
        for _ in range(STEPS):
            house.do(rng.choice(house.admissible()))
            house.is_won()
    return STEPS * len(houses) / (time.process_time() - begun)


def _env_speed(sample: Sample, games: Sequence[Game]) -> float:
    """Return steps per second of whole environments (text, rewards, gymnasium's bookkeeping). Resets are not timed."""
    env, rng = AlfworldEnv(str(sample.store)), random.Random(0)
    tasks = {task.payload["game"]: task for task in env.tasks(sample.split)}
    steps, seconds = 0, 0.0
    gc.collect()
    for game in games:
        env.reset(options={"task": tasks[game.id]})
        begun = time.process_time()
        while not env.done:
            env.step(rng.randrange(int(env.action_space.n)))
            steps += 1
        seconds += time.process_time() - begun
    return steps / seconds


def _resets(sample: Sample, games: Sequence[Game], repetitions: int) -> list[float]:
    """Return the milliseconds of each `reset` of a game not in memory: decoding, house, first text and commands."""
    env = AlfworldEnv(str(sample.store))
    tasks = {task.payload["game"]: task for task in env.tasks(sample.split)}
    taken = []
    for _ in range(repetitions):
        for game in games:
            open_shelf(sample.store, sample.split).game.cache_clear()
            taken.append(_milliseconds(partial(env.reset, options={"task": tasks[game.id]})))
    return taken


def _milliseconds(function: Callable[[], Any]) -> float:
    begun = time.process_time()
    function()
    return 1000 * (time.process_time() - begun)


def _memory(sample: Sample, count: int) -> Row:
    """Measure the growth of a fresh process that makes and plays `count` environments, all alive to the end."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        different, grown = pool.apply(_growth, (str(sample.store), sample.split, count))
    return {"what": f"{count:,} environments, MiB", "games": different, "median": grown / 2**20}


def _growth(store: str, split: str, count: int) -> tuple[int, int]:
    rng = random.Random(0)
    tasks = list(AlfworldEnv(store).tasks(split))
    gc.collect()
    before = _resident()
    envs = [AlfworldEnv(store) for _ in range(count)]
    for env, task in zip(envs, cycle(_spread(tasks, count)), strict=False):
        env.reset(options={"task": task})
        for _ in range(STEPS - 1):
            if not env.done:
                env.step(rng.randrange(int(env.action_space.n)))
    return len({env.task.id for env in envs}), _resident() - before


def _resident() -> int:
    """Return this process's resident memory in bytes; 0 if the system does not report it."""
    status = Path("/proc/self/statm")
    return int(status.read_text(encoding="ascii").split()[1]) * PAGE if status.exists() else 0


# ---- from the files: compiling, and the reference --------------------------------------------------------------------


def _with_files(sample: Sample, games: Sequence[Game], asked: Asked) -> Iterator[Row]:
    if not games:
        return
    compiling = [_milliseconds(partial(_compiled, game.id, *sample.files[game.id])) for game in games]
    yield _row("reset from PDDL, ms", len(games), compiling)
    if find_spec("textworld") is None or find_spec("alfworld") is None:
        print(
            f"the reference engine is not installed, so its rows are left out; {install('alfworld')}", file=sys.stderr
        )
    elif asked.reference:
        yield from _beside_reference(sample, _spread(games, asked.reference), asked)


def _compiled(game_id: str, problem: str, trajectory: dict[str, Any]) -> str:
    game = compile_game(game_id, problem, trajectory)
    return House(game).introduction(game.description)


def _beside_reference(sample: Sample, games: Sequence[Game], asked: Asked) -> Iterator[Row]:
    """Yield the speeds of both engines on the same games and commands, and their ratio by game."""
    resets, slow, fast = [], [], []
    for game in games:
        commands = _drawn(game, asked.walk)
        reference = ReferenceHouse(sample.files[game.id][0], game)
        resets.append(_milliseconds(partial(reference.introduction, game.description)))
        slow.append(_walked(reference, commands))
        fast.append(statistics.median(_walked(House(game), commands) for _ in range(asked.repetitions)))
    yield _row("reset of the reference, ms", len(games), resets)
    yield _row("steps/s, reference", len(games), slow)
    yield _row("steps/s, engine, same commands", len(games), fast)
    ratios = [quick / stock for quick, stock in zip(fast, slow, strict=True)]
    yield {
        "what": "engine / reference",
        "games": len(games),
        "median": statistics.median(ratios),
        "worst 5 %": min(ratios),
    }


def _drawn(game: Game, count: int) -> list[str]:
    house, rng, commands = House(game), random.Random(0), []
    for _ in range(count):
        commands.append(rng.choice(house.admissible()))
        house.do(commands[-1])
    return commands


def _walked(house: House | ReferenceHouse, commands: Sequence[str]) -> float:
    begun = time.process_time()
    for command in commands:
        house.do(command)
        house.admissible()
        house.is_won()
    return len(commands) / (time.process_time() - begun)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    for option in fields(Asked):
        kind = Path if option.default is None else int
        parser.add_argument(f"--{option.name}", type=kind, default=option.default, help=option.metadata["help"])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = vars(parser.parse_args(words))
    as_json = arguments.pop("json")
    table_rows = measured(Asked(**arguments))
    if as_json:
        print(json.dumps(table_rows, indent=1))
        return
    from .measure import report

    print(report(table_rows, False), end="")


if __name__ == "__main__":
    main()
