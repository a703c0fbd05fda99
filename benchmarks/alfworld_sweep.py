"""Compare both ALFWorld engines on every game, command by command: the native one and the reference (TextWorld).

    python -m benchmarks.alfworld_sweep DIR --out sweep.jsonl

DIR holds the official files (folders or archives). Each game is walked twice. The first walk begins at random, with
doors, takes and treatments more often than their share of the commands. From there it follows a shortest plan to the
win, and ends with a few more random commands. The second walk is the searching expert's. One command in twenty is
illegal. After every command, both engines must have said the same, list the same commands in the same order, and agree
on whether the game is won.

Each game's result is written to FILE at once, as a line. Games already in FILE are skipped, so an interrupted sweep can
be continued; failed games are tried again. Needs the extra `alfworld`, but no torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.core.advice import install
from reflectrl.core.types import UserError, named_seed
from reflectrl.wings.alfworld.beliefs import Beliefs
from reflectrl.wings.alfworld.game import TYPES, Game, GameError
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.planner import best_command
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.reference import ReferenceHouse
from reflectrl.wings.alfworld.search import advise
from reflectrl.wings.alfworld.sources import PROBLEM, TRAJECTORY, open_sources

from .alfworld_faster import make_faster

BEFORE, AFTER = 16, 6
"""Number of random commands before the plan, and after the win."""
LONGEST = 60
"""Largest number of commands of the searching expert."""
ILLEGAL = 0.05
WEIGHTS = {
    "go": 6,
    "open": 6,
    "take": 8,
    "move": 3,
    "use": 4,
    "heat": 9,
    "cool": 9,
    "clean": 9,
    "slice": 20,
    "help": 0.5,
}
"""Weights by which a random walk draws a verb among the possible ones; 1 for verbs that are not listed."""
USEFUL = ("knife", "microwave", "fridge", "sinkbasin", "lamp")
"""Words of useful commands. Half of the time a walk picks a command with one of them, since they lead to rarer ones."""
PER_PROCESS = 200
"""Games per worker process. Then a new process takes over, since the reference keeps some memory of every game."""


class Files(NamedTuple):
    """Official files of a game: "SPLIT/TASK/TRIAL", problem, trajectory (JSON); stock: use the reference unchanged."""

    place: str
    problem: str
    trajectory: str
    stock: bool


class DifferenceError(Exception):
    """A difference between the engines. Arguments: what differs, the native engine's value, the reference's value."""


# ---- one game --------------------------------------------------------------------------------------------------------


class Pair:
    """A game in both engines at once.

    Attributes:
        steps, listed, verbs: commands carried out, admissible commands compared, commands by verb.
        won: True if the game has been won since it began.
        digest: hash of everything that the reference said, to compare two references.
    """

    def __init__(self, game: Game, reference: Any) -> None:
        self.game, self.native, self.reference = game, House(game), reference
        self.steps, self.listed, self.verbs, self.won = 0, 0, Counter[str](), False
        self.digest = hashlib.sha256()

    def begin(self) -> str:
        """Start the game again and return the introduction."""
        self.native, self.won = House(self.game), False
        words = self.game.description
        introduction = self._same("introduction", self.native.introduction(words), self.reference.introduction(words))
        self._compare_state()
        return introduction

    def do(self, command: str) -> str:
        """Carry out a command in both engines and return what they say.

        Raises:
            DifferenceError: if they differ.
        """
        self.steps += 1
        self.verbs[command.split()[0] if command in self.native.commands() else "(illegal)"] += 1
        feedback = self._same(f"after {command!r}", self.native.do(command), self.reference.do(command))
        self._compare_state()
        return feedback

    def _compare_state(self) -> None:
        commands = self._same("admissible commands", self.native.admissible(), self.reference.admissible())
        self.listed += len(commands)
        self.won |= self._same("won", self.native.is_won(), self.reference.is_won())

    def _same(self, what: str, native: Any, reference: Any) -> Any:
        self.digest.update(repr(reference).encode())
        if native != reference:
            raise DifferenceError(what, native, reference)
        return native


def compare(files: Files) -> dict[str, Any]:
    """Walk a game in both engines and return its line of the results."""
    _set_up(files.stock)
    game = compiled(files)
    return walked(files.place, Pair(game, ReferenceHouse(files.problem, game)))


def compiled(files: Files) -> Game:
    """Compile a game for the native engine."""
    return compile_game("/".join(files.place.split("/")[1:]), files.problem, json.loads(files.trajectory))


def walked(name: str, pair: Pair) -> dict[str, Any]:
    """Walk a game twice and return its line of the results."""
    game = pair.game
    rng = random.Random(named_seed("alfworld-sweep", game.id))
    begun, differences, wins = time.perf_counter(), [], 0
    for walk in (random_walk, _searching_walk):
        try:
            walk(pair, rng)
            wins += pair.won
        except DifferenceError as difference:
            what, native, reference = difference.args
            about = {"walk": walk.__name__[1:], "step": pair.steps, "what": what}
            differences.append({**about, "native": native, "reference": reference})
    return {
        "game": name, "type": game.type, "walks": 2, "wins": wins, "steps": pair.steps, "commands": pair.listed,
        "verbs": pair.verbs, "seconds": round(time.perf_counter() - begun, 3), "digest": pair.digest.hexdigest(),
        "differences": differences,
    }  # fmt: skip


@lru_cache(maxsize=1)
def _set_up(stock: bool) -> None:
    if not stock:
        make_faster()


def random_walk(pair: Pair, rng: random.Random) -> None:
    """Play random commands, then the shortest plan to the win, then some more random commands."""
    pair.begin()
    for _ in range(BEFORE):
        pair.do(_drawn(pair.native, rng))
    with suppress(GameError):  # lost: in the hand is something that fits nowhere in this house
        while not pair.native.is_won():
            pair.do(best_command(pair.native))
            if rng.random() < ILLEGAL:
                pair.do(_illegal(pair.native, rng))
    for _ in range(AFTER):
        pair.do(_drawn(pair.native, rng))


def _searching_walk(pair: Pair, rng: random.Random) -> None:
    beliefs = Beliefs.begin(pair.begin())
    for _ in range(LONGEST):
        if pair.native.is_won():
            return
        command = advise(beliefs, pair.game.goal, pair.native.commands()).command
        if rng.random() < ILLEGAL:
            command = _illegal(pair.native, rng)
        beliefs.add(command, pair.do(command))


def _drawn(house: House, rng: random.Random) -> str:
    """Draw a random command: first the verb, then one of its commands."""
    if rng.random() < ILLEGAL:
        return _illegal(house, rng)
    by_verb: dict[str, list[str]] = {}
    for command in house.admissible():
        by_verb.setdefault(command.split()[0], []).append(command)
    [verb] = rng.choices(list(by_verb), [WEIGHTS.get(verb, 1) for verb in by_verb])
    useful = [command for command in by_verb[verb] if _is_useful(house, command)]
    return rng.choice(useful if useful and rng.random() < 0.5 else by_verb[verb])


def _is_useful(house: House, command: str) -> bool:
    verb, *indices = house.commands()[command]
    there = [house.game.things[thing].name for thing in house.contents[indices[0]]] if verb == "go" else []
    return any(word in " ".join([command, *there]) for word in USEFUL)


def _illegal(house: House, rng: random.Random) -> str:
    """Make a command that is rarely legal: nonsense, a typing error, or something that is possible in another state."""
    thing, receptacle = rng.choice(house.game.things).name, rng.choice(house.game.receptacles).name
    legal = rng.choice(house.admissible())
    slips = ["", "dance", "go to", legal.upper(), f"{legal} now", f" {legal} ", legal.replace(" ", "  ")]
    verbs = [f"{verb} {receptacle}" for verb in ("go to", "open", "close", "examine")]
    verbs += [f"take {thing} from {receptacle}", f"move {thing} to {receptacle}", f"put {thing} in/on {receptacle}"]
    verbs += [f"{verb} {thing} with {receptacle}" for verb in ("heat", "cool", "clean", "slice")]
    return rng.choice([rng.choice(slips), rng.choice([*verbs, f"use {thing}", f"examine {thing}"])])


# ---- all games -------------------------------------------------------------------------------------------------------


def sweep(source: Path, out: Path, processes: int = 1, every: int = 1, stock: bool = False) -> Iterator[dict[str, Any]]:
    """Compare the games that `out` does not have yet. Each result is written before it is yielded."""
    have = {line["game"] for line in results(out) if line["walks"]}
    with out.open("a", encoding="utf-8") as file, multiprocessing.get_context("spawn").Pool(
        processes, _ignore_interrupts, maxtasksperchild=PER_PROCESS
    ) as pool:  # fmt: skip
        if out.stat().st_size and not out.read_bytes().endswith(b"\n"):
            file.write("\n")  # the last line was cut off
        for line in pool.imap_unordered(_compare_safely, games(source, every, have, stock)):
            file.write(json.dumps(line) + "\n")
            file.flush()
            yield line


def games(source: Path, every: int = 1, have: Collection[str] = (), stock: bool = False) -> Iterator[Files]:
    """Yield every Nth game of a folder or archive, without those in `have`."""
    with open_sources([source]) as (files, _):
        for game_path in sorted(files, key=lambda key: (key.split == "train", key))[::every]:
            name = "/".join(game_path)
            if name not in have and files[game_path].keys() >= {PROBLEM, TRAJECTORY}:
                problem, trajectory = (files[game_path][kind]().decode("utf-8") for kind in (PROBLEM, TRAJECTORY))
                yield Files(name, problem, trajectory, stock)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others


def _compare_safely(files: Files) -> dict[str, Any]:
    try:
        return compare(files)
    except (GameError, UserError, AssertionError, LookupError, ValueError) as error:
        failed = {"walk": "", "step": 0, "what": f"{type(error).__name__}: {error}", "native": "", "reference": ""}
        counts = {"walks": 0, "wins": 0, "steps": 0, "commands": 0, "verbs": {}, "seconds": 0}
        return {"game": files.place, "type": "", **counts, "digest": "", "differences": [failed]}


def results(out: Path) -> list[dict[str, Any]]:
    """Return the results in a file, the last one of each game. Incomplete lines are skipped."""
    latest: dict[str, dict[str, Any]] = {}
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        latest[result["game"]] = result
    return list(latest.values())


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """Return a table by task type, and the number of times that each verb was carried out."""
    columns = ("games", "walks", "wins", "steps", "commands", "seconds", "differences")
    text = f"{'type':32}" + "".join(f"{name:>12}" for name in columns) + "\n"
    for kind in [*TYPES, "", "all"]:
        of_kind = [line for line in lines if kind in ("all", line["type"])]
        if of_kind:
            sums = [len(of_kind), *(sum(line[name] for line in of_kind) for name in columns[1:-1])]
            sums.append(sum(len(line["differences"]) for line in of_kind))
            text += f"{kind or '(failed)':32}" + "".join(f"{value:12,.0f}" for value in sums) + "\n"
    verbs = sum((Counter(line["verbs"]) for line in lines), Counter[str]())
    return text + ", ".join(f"{verb} {count:,}" for verb, count in verbs.most_common()) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Run the sweep. Return 1 if there are differences, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("source", type=Path, metavar="DIR", help="folder of the official files, or an archive")
    parser.add_argument("--processes", type=int, default=1, help="worker processes")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth game")
    parser.add_argument("--out", type=Path, default=Path("alfworld_sweep.jsonl"), metavar="FILE", help="results")
    parser.add_argument("--stock", action="store_true", help="the reference as it is, not made faster")
    args = parser.parse_args(words)
    if find_spec("textworld") is None or find_spec("alfworld") is None:
        parser.error(f"the reference engine is not installed; {install('alfworld')}")
    interrupted = False
    try:
        for line in sweep(args.source, args.out, args.processes, args.every, args.stock):
            print(f"{line['game']}: {line['steps']} steps, {line['seconds']} s", flush=True)
            for difference in line["differences"]:
                print(json.dumps(difference, indent=1), flush=True)
    except KeyboardInterrupt:
        interrupted = True
    lines = results(args.out)
    print(summary(lines), end="")
    return 130 if interrupted else int(any(line["differences"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
