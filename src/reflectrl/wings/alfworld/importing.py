"""Filling a store: from the official files, or with generated games."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import BadZipFile

from reflectrl.core.json_lines import parse_json
from reflectrl.core.types import UserError, named_seed
from reflectrl.wings.alfworld.game import TYPES, Game, GameError, to_json
from reflectrl.wings.alfworld.generate import generate_game
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.library import SETS, fill, require_fillable
from reflectrl.wings.alfworld.planner import plan
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.sources import LAYOUT, PROBLEM, REFERENCE, TRAJECTORY, GamePath, Read, open_sources

ProgressCallback = Callable[[int, int, str], None]
"""Called with (done, total, what) as the work goes on."""

UNREADABLE = (ValueError, OSError, EOFError, RuntimeError, BadZipFile, zlib.error)
"""Errors raised by a damaged, encrypted or malformed file. They make its game bad and leave the others alone."""

_WORDING = re.compile(r'Your task is to: ([^"\n]{1,1000}+)"')


class _SkippedError(Exception):
    """A game that the official sets leave out. The message is the reason."""


@dataclass
class Imported:
    """Result of an import.

    Attributes:
        games: split → game id → the game's line.
        skipped: reason → number of games left out, which the official sets leave out too.
        bad: (split and id, what is wrong) of games that cannot be played.
    """

    games: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[str, str]] = field(default_factory=list)


def import_games(
    sources: Sequence[Path],
    store: Path,
    progress: ProgressCallback = lambda done, total, what: None,
    replace: bool = False,
) -> Imported:
    """Compile the games of the official files into a store. Games of the same id are overwritten, others stay.

    Args:
        sources: folders and archives in the official layout; a game's files may be spread over several.
        store: folder of the store; created if it does not exist.
        replace: remove everything that was in the store.

    Raises:
        UserError: the sources cannot be read, the store cannot be written or holds generated games, or there is not one
            playable game. The store is then left unchanged.
    """
    require_fillable(store, generated=False, replace=replace)
    with open_sources(sources) as (files, skipped):
        imported = Imported(skipped=skipped)
        for done, path in enumerate(sorted(files), 1):
            try:
                game = _read_game(path, files[path])
            except _SkippedError as reason:
                imported.skipped[str(reason)] += 1
            except UNREADABLE as error:
                imported.bad.append((f"{path.split}/{path.id}", " ".join(str(error).split()) or type(error).__name__))
            else:
                imported.games.setdefault(path.split, {})[path.id] = to_json(game)
            progress(done, len(files), "games read")
    if not imported.games:
        why = f"left out: {', '.join(imported.skipped)}; expected {LAYOUT}"
        if imported.bad:
            why = f"{len(imported.bad)} cannot be played, the first being {': '.join(imported.bad[0])}"
        raise UserError(f"{', '.join(map(str, sources))}: not one game can be imported; {why}")
    fill(store, imported.games, replace=replace)
    return imported


def _read_game(path: GamePath, files: Mapping[str, Read]) -> Game:
    if TRAJECTORY not in files:
        raise GameError(f"there is no {TRAJECTORY}")
    trajectory = _object(TRAJECTORY, files[TRAJECTORY]())
    if str(trajectory.get("task_type")) not in TYPES:
        raise _SkippedError(f"task type {trajectory.get('task_type')}")
    reference = _object(REFERENCE, files[REFERENCE]()) if REFERENCE in files else {}
    if reference.get("solvable") is False:
        raise _SkippedError("marked as not solvable")
    words = _WORDING.search(str(reference.get("grammar", "")))
    if PROBLEM not in files:
        raise GameError(f"there is no {PROBLEM}")
    problem = files[PROBLEM]().decode("utf-8")
    return with_plan(compile_game(path.id, problem, trajectory, words[1] if words else ""))


def _object(name: str, content: bytes) -> dict[str, object]:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise GameError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise GameError(f"{name} is not a JSON object")
    return value


def with_plan(game: Game) -> Game:
    """Return the game with the length of its shortest plan.

    Raises:
        GameError: it cannot be won.
    """
    return replace(game, plan_length=len(plan(House(game))))


def generate_games(
    count: int,
    seed: int,
    store: Path,
    progress: ProgressCallback = lambda done, total, what: None,
    replace: bool = False,
) -> Imported:
    """Fill a store with generated games: `count` for training, a tenth of it for each other set.

    Generated games that were there before are removed. The same count and seed make the same games.

    Raises:
        UserError: the store cannot be written, or holds real games.
    """
    require_fillable(store, generated=True, replace=replace)
    imported = Imported()
    sizes = {split: count if split == "train" else max(1, count // 10) for split in SETS}
    pairs = [(split, index) for split, size in sizes.items() for index in range(size)]
    for done, (split, index) in enumerate(pairs, 1):
        game_id, problem, trajectory = generate_game(named_seed("alfworld-generated", seed, split, index))
        imported.games.setdefault(split, {})[game_id] = to_json(with_plan(compile_game(game_id, problem, trajectory)))
        progress(done, len(pairs), "games made")
    fill(store, imported.games, generated=f"{count} games for training, seed {seed}", replace=True)
    return imported
