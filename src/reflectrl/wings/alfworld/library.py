"""Storage of games: a *store* is a folder with one file per split, one game per line, sorted by game id."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from reflectrl.core.config.folders import data_folder, no_link, require_writable
from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError
from reflectrl.wings.alfworld.game import Game, GameError, from_json

SETS = ("train", "valid_seen", "valid_unseen", "valid_train")
"""The official sets of games."""

KEPT = 256
"""Number of games of a shelf that stay decoded. Decoding a game takes less than a millisecond."""

_SUFFIX = ".games.jsonl"
_FRESH = ".writing"
_MARKER = "generated"
_LINE = re.compile(r'\{"id":("(?:[^"\\]|\\.)*"),"type":"(\w+)",.*,"plan_length":(\d+)\}')


class Entry(NamedTuple):
    """A game's summary, known before it is decoded. `plan_length` is the length of its shortest plan, in commands."""

    id: str
    type: str
    plan_length: int


class Shelf:
    """The games of a split, as lines of text. A game is decoded when it is asked for.

    Attributes:
        entries: all games, sorted by id.
        generated: True if the games were generated, so that results on them are not ALFWorld scores.

    Raises:
        UserError: a line is not a game; the message names file and line.
    """

    def __init__(self, path: Path, generated: bool = False) -> None:
        self.path, self.generated = path, generated
        self._lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        entries: list[Entry] = []
        for index, line in enumerate(self._lines):
            match = _LINE.fullmatch(line)
            if match is None:
                raise self._corrupt(index, "not a cached game")
            entries.append(Entry(json.loads(match[1]), match[2], int(match[3])))
        self.entries = tuple(entries)
        self._numbers = {entry.id: index for index, entry in enumerate(self.entries)}
        self.game = lru_cache(maxsize=KEPT)(self._game)

    def _game(self, game_id: str) -> Game:
        """Return the game with that id."""
        if game_id not in self._numbers:
            raise UserError(f"{self.path} has no game {game_id!r}")
        index = self._numbers[game_id]
        try:
            return from_json(self._lines[index])
        except GameError as error:
            raise self._corrupt(index, str(error)) from error

    def _corrupt(self, number: int, why: str) -> UserError:
        return UserError(
            f"{self.path}, line {number + 1}: {why}; get the games again: reflectrl data alfworld --replace ..."
        )

    def lines(self) -> dict[str, str]:
        """Game id → its line."""
        return {entry.id: line for entry, line in zip(self.entries, self._lines, strict=True)}


def splits_in(store: Path) -> list[str]:
    """Return the splits that a store holds."""
    stored = {path.name.removesuffix(_SUFFIX) for path in store.glob(f"*{_SUFFIX}")}
    return [split for split in SETS if split in stored]


def is_generated(store: Path) -> bool:
    """Return whether the store's games were generated."""
    return (store / _MARKER).exists()


def open_shelf(store: str | Path, split: str) -> Shelf:
    """Open the games of a split. An open shelf is shared, and read again when its file has changed.

    Args:
        store: folder of the games; "" is the default one.
        split: one of `SETS`.

    Raises:
        UserError: there are no games, or none of that split, or the file is damaged.
    """
    folder = data_folder("alfworld", store)
    path = folder / f"{split}{_SUFFIX}"
    try:
        status = path.stat()
        return _opened(path.resolve(), status.st_mtime_ns, status.st_size, is_generated(folder))
    except FileNotFoundError:
        raise UserError(_absence(store, folder, split)) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error


@lru_cache(maxsize=8)
def _opened(path: Path, changed: int, size: int, generated: bool) -> Shelf:
    return Shelf(path, generated)


def _absence(store: str | Path, folder: Path, split: str) -> str:
    verb = "reflectrl data alfworld" + ("" if folder == data_folder("alfworld") else f" --store {store}")
    if splits := splits_in(folder):
        return (
            f"{folder} has no games of {split}, only of {', '.join(splits)}: get the official ones with "
            f"`{verb} --download` or `{verb} --from DIR`, or leave {split} out (`--eval.splits` of a run)"
        )
    return (
        f"there are no ALFWorld games in {folder}: get them with `{verb} --download`, or `{verb} --from DIR` "
        f"(the official files), or make some with `{verb} --generate N`"
    )


# ---- filling a store ---------------------------------------------------------------------------------------------


def require_fillable(store: Path, generated: bool, replace: bool) -> None:
    """Refuse, before any work, a store that cannot be written, or that would mix real and generated games.

    Raises:
        UserError: the store is refused; the message says why.
    """
    require_writable(store, f"games cannot be written to {store}")
    if splits_in(store) and is_generated(store) != generated and not replace:
        stored, new = ("generated", "real") if is_generated(store) else ("real", "generated")
        raise UserError(
            f"{store} holds {stored} games, which must not be mixed with {new} ones: "
            "--replace removes them, --store DIR puts the new ones elsewhere"
        )


def fill(store: Path, games: Mapping[str, Mapping[str, str]], generated: str = "", replace: bool = False) -> None:
    """Write games into a store. Existing files stay untouched until everything new is on the disk.

    Args:
        games: split → game id → the game's line. Other games in the store stay, unless `replace`.
        generated: how the games were generated, for the marker; "" for real games.
        replace: remove everything that was in the store.

    Raises:
        UserError: they cannot be written (the disk is full, say).
    """
    try:
        old = [store / f"{split}{_SUFFIX}" for split in splits_in(store)] if replace else []
        marker = store / _MARKER
        fresh = [_write_aside(store / f"{split}{_SUFFIX}", lines, replace) for split, lines in games.items()]
        if generated:
            fresh.append(store / f"{_MARKER}{_FRESH}")
            fresh[-1].write_text(f"{generated}\n", encoding="utf-8")
        for path in old:  # from here on nothing is written that takes space on the disk
            path.unlink()
        if not generated:
            marker.unlink(missing_ok=True)
        for path in fresh:
            path.replace(path.with_suffix(""))
    except OSError as error:
        for path in store.glob(f"*{_FRESH}"):
            path.unlink(missing_ok=True)
        raise UserError(f"games cannot be written to {store}: {reason(error)}") from error


def _write_aside(path: Path, lines: Mapping[str, str], replace: bool) -> Path:
    """Write the given games, and the ones that `path` holds, to a file beside it. Return the new file's path."""
    existing = Shelf(path).lines() if path.exists() and not replace else {}
    merged = {**existing, **lines}
    fresh = path.with_name(path.name + _FRESH)
    with open(fresh, "w", encoding="utf-8", opener=no_link) as file:
        file.writelines(merged[game_id] + "\n" for game_id in sorted(merged))
        file.flush()
        os.fsync(file.fileno())
    return fresh
