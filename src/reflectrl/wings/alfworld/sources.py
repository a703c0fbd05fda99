"""Reader of ALFWorld's official files: folders, tar archives and zip archives, or several of these together (ALFWorld
publishes the two halves of a game in two archives).

Archives are read in memory, member by member. Nothing is extracted, and links in them are not followed.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from reflectrl.core.archives import content_of, opened_tar
from reflectrl.core.plugins import reason
from reflectrl.core.regular_files import open_regular, read_regular
from reflectrl.core.types import UserError
from reflectrl.wings.alfworld.library import SETS

PROBLEM, TRAJECTORY, REFERENCE = "initial_state.pddl", "traj_data.json", "game.tw-pddl"
LAYOUT = f"SPLIT/TASK/TRIAL/{PROBLEM} and {TRAJECTORY} beside it, SPLIT being one of {', '.join(SETS)}"

ARCHIVES = (".tar.xz", ".tar.gz", ".tgz", ".zip")
MOST_BYTES = 32 << 20
"""Largest size of a game's file, in bytes. A larger file is refused."""
MOST_UNPACKED = 1 << 35
"""Largest size of an archive's decompressed contents, in bytes."""

Read = Callable[[], bytes]


class GamePath(NamedTuple):
    """Location of a game in the official layout."""

    split: str
    task: str
    trial: str

    @property
    def id(self) -> str:
        """The game's id: "TASK/TRIAL"."""
        return f"{self.task}/{self.trial}"


class Sources(NamedTuple):
    """The files found: game → file name → a function that reads it. And the skipped games, by reason."""

    files: dict[GamePath, dict[str, Read]]
    skipped: Counter[str]


@contextmanager
def open_sources(paths: Sequence[Path]) -> Iterator[Sources]:
    """Find the files of games. They can be read as long as the context is open.

    Args:
        paths: folders (any folder of the layout, or one above it) and archives, or folders of archives. If two have the
            same file, the later one counts.

    Raises:
        UserError: there is no such folder, it is in another layout, or an archive is damaged.
    """
    files: dict[GamePath, dict[str, Read]] = {}
    skipped: dict[GamePath, str] = {}
    with ExitStack() as stack:
        for path in paths:
            try:
                members = list(_placed(path.expanduser(), stack))
            except OSError as error:
                raise UserError(f"{path} cannot be read: {reason(error)}") from error
            if not members:
                raise UserError(f"{path}: no ALFWorld games there; expected {LAYOUT}, in a folder or in archives")
            for game, name, read in members:
                # By its name alone, a game is not among the official sets: the rule of the reference's own loader.
                barred = next((word for word in ("movable", "Sliced") if word in game.task + game.trial), "")
                if barred or game.split not in SETS:
                    skipped[game] = f"{barred} in its name" if barred else f"in none of {', '.join(SETS)}"
                else:
                    files.setdefault(game, {})[name] = read
        yield Sources(files, Counter(skipped.values()))


def _placed(path: Path, stack: ExitStack) -> Iterator[tuple[GamePath, str, Read]]:
    if not path.exists():
        raise UserError(f"{path}: no such folder or archive")
    if path.is_dir():
        members = list(_in_folder(path.resolve()))
        yield from members
        archives = [] if members else sorted(entry for entry in path.iterdir() if entry.name.endswith(ARCHIVES))
    else:
        archives = [path]
    for archive in archives:
        yield from _in_archive(archive, stack)


def _game_path(parts: Sequence[str]) -> tuple[GamePath, str] | None:
    """Return the game's path and the file name at the end of a path; None if the path does not fit the layout."""
    if len(parts) < 4 or parts[-1] not in (PROBLEM, TRAJECTORY, REFERENCE) or ".." in parts[-4:]:
        return None
    return GamePath(*parts[-4:-1]), parts[-1]


def _in_folder(folder: Path) -> Iterator[tuple[GamePath, str, Read]]:
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            game_file = _game_path(path.parts)
            if game_file:
                yield *game_file, partial(read_regular, path, MOST_BYTES)


def _in_archive(path: Path, stack: ExitStack) -> Iterator[tuple[GamePath, str, Read]]:
    reader = _in_zip if path.name.endswith(".zip") else _in_tar
    try:
        for name, read in reader(path, stack):
            game_file = _game_path(PurePosixPath(name).parts)
            if game_file:
                yield *game_file, read
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, ValueError) as error:
        why = str(error).partition("\n")[0].rstrip(":")
        raise UserError(f"{path}: cut off, damaged, or not an archive ({why})") from error


def _in_zip(path: Path, stack: ExitStack) -> Iterator[tuple[str, Read]]:
    archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_regular(path))))
    for member in archive.infolist():
        if _is_wanted(path, member.filename, member.file_size):
            yield member.filename, partial(archive.read, member)


def _in_tar(path: Path, stack: ExitStack) -> Iterator[tuple[str, Read]]:
    """Yield the members of a tar. A tar can only be read in sequence, so their bytes are kept, compressed."""
    with opened_tar(path, MOST_UNPACKED) as archive:
        for member in archive:
            if member.isreg() and _is_wanted(path, member.name, member.size):
                yield member.name, partial(zlib.decompress, zlib.compress(content_of(archive, member), 1))


def _is_wanted(archive: Path, name: str, size: int) -> bool:
    """Return whether a member is a file of a game. Raise UserError if it is but is too large."""
    wanted = _game_path(PurePosixPath(name).parts) is not None
    if wanted and size > MOST_BYTES:
        raise UserError(f"{archive}: {name} has {size:,} bytes; a game's file has at most {MOST_BYTES:,}")
    return wanted
