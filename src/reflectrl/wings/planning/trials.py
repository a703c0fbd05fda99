"""Trials of BeelineBench: the package's own generators, and which trials may be used for what.

Trial `n` of a domain is the same problem everywhere. The official ones, 1 to 100, are for the benchmark's own program
alone. Training, validation and test use trials from 10,000 on, in ranges that lie far apart.
"""

from __future__ import annotations

from functools import lru_cache, partial
from importlib import import_module
from typing import Any

from reflectrl.core.advice import install
from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError
from reflectrl.wings.planning.slides import Slides

BENCHMARK = "1.0.0"
DOMAINS = ("tiles", "blocksworld", "countdown", "rush_hour", "keys_doors")
DOWNLOADED = ("word_ladder", "wikispeedia")
"""Domains whose words and articles the package does not contain: `python -m beelinebench download` fetches them."""
OFFICIAL = range(1, 101)
FIRST_TRIAL = {"train": 10_000, "validation": 1_000_000, "test": 2_000_000}
MOST_TRIALS = 900_000
"""Most trials of a split, so that the ranges of the splits never meet."""


def package(module: str) -> Any:
    """Import a module of `beelinebench`. Raise UserError if the package is not installed."""
    try:
        return import_module(f"beelinebench.{module}")
    except ImportError as error:
        raise UserError(f"the planning domains need the package beelinebench; {install('planning')}") from error


@lru_cache(maxsize=1)
def rules() -> Any:
    """Return the official benchmark: limits of the search, and the settings of each domain."""
    return package("benchmark").load(package("paths").PACKAGE / "benchmarks.toml")[BENCHMARK]


@lru_cache(maxsize=4096)
def problem(domain: str, trial: int) -> Any:
    """Return a trial as the package's `Problem`."""
    settings = rules().domains[domain]
    if domain == "rush_hour":
        return make_rush_hour(trial, settings["vehicles"], settings["min_moves"])
    module = package(f"domains.{domain}")
    if domain in DOWNLOADED:
        return module.problem(trial, downloaded(domain), **settings)
    return module.problem(trial, **settings)


@lru_cache(maxsize=2)
def downloaded(domain: str) -> Any:
    """Load the words, or the articles and their links, from the benchmark's working folder (`BEELINEBENCH_HOME`).

    Raises:
        UserError: they are not there, or cannot be read.
    """
    module, home = package(f"domains.{domain}"), package("paths").home()
    try:
        return module.load(home / module.DATA)
    except FileNotFoundError as error:
        about = f"planning: {domain} needs data that is not in {home / module.DATA}"
        raise UserError(f"{about}; run `python -m beelinebench download`, or set BEELINEBENCH_HOME") from error
    except (OSError, ValueError, IndexError) as error:
        raise UserError(f"planning: {home / module.DATA} cannot be read: {reason(error)}") from error


def make_rush_hour(trial: int, vehicles: int, min_moves: int) -> Any:
    """Make a trial of Rush Hour as the package does, but measure the boards it rejects some 30 times as fast."""
    module, rng = package("domains.rush_hour"), package("rng").Draws("rush_hour", trial)
    while True:
        cars, start = module.random_board(rng, vehicles)
        fewest = None if module.reached(start) else Slides(cars, start).moves_to_exit(start)
        if fewest is not None and fewest >= min_moves:
            break
    return package("search").Problem(
        domain="rush_hour",
        trial=trial,
        start=start,
        moves=partial(module.moves, cars),
        solved=module.reached,
        heuristic=partial(module.blocking_cars, cars),
        heuristic_name="blocking_cars",
        render=partial(module.board, cars),
        objective=module.OBJECTIVE,
        context=module.CONTEXT,
    )


@lru_cache(maxsize=1)
def official_boards() -> frozenset[Any]:
    """Return the official boards of the 8-puzzle and their neighbours, except the solved board.

    Training leaves them out, because there are so few boards that training would otherwise hold nearly all of them.
    """
    tiles = package("domains.tiles")
    starts = {problem("tiles", trial).start for trial in OFFICIAL}
    return frozenset(starts.union(*map(tiles.slide, starts)) - {tiles.SOLVED})


@lru_cache(maxsize=3)
def official_pairs(domain: str) -> frozenset[Any]:
    """Return start and goal of each official trial, which training leaves out too."""
    problems = [problem(domain, trial) for trial in OFFICIAL]
    return frozenset((each.start, each.objective) for each in problems)


def is_left_out(domain: str, trial: int) -> bool:
    """Return whether a trial starts like an official one, so that it must not be trained on."""
    if domain == "tiles":
        return problem(domain, trial).start in official_boards()
    if domain in ("countdown", *DOWNLOADED):
        each = problem(domain, trial)
        return (each.start, each.objective) in official_pairs(domain)
    return False
