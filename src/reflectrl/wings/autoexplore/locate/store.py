"""Cache of indexes in the user's cache folder: one folder per repository, with segments and a list of the files.

A segment is named by its digest and never changes. The list is replaced at once, so two processes can share the folder:
the later one wins, and segments that it does not know are removed once they are an hour old. What is missing,
damaged, or owned by another user is built again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.arrays import DamagedError, digest, pack, read, write
from reflectrl.wings.autoexplore.sandbox import Stamp

VERSION = 1
"""Increase it whenever the content of segments changes."""
VARIABLE = "REFLECTRL_CACHE"
"""Environment variable with the folder of caches; "off" disables them."""
UNUSED_SECONDS = 3600
_LIST = "files"
_SUFFIX = ".segment"
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Entry:
    """File in the list.

    Attributes:
        stamp: stamp when it was indexed.
        content: digest of its contents, 8 bytes.
        segment: number of its segment; -1 for a file that was left out.
        number: number in the segment, or of the reason in `Listing.reasons`.
    """

    stamp: Stamp
    content: bytes
    segment: int
    number: int


@dataclass
class Listing:
    """List of the files of a repository.

    Attributes:
        entries: path → entry.
        segments: names of the segments.
        reasons: reasons for leaving out files.
    """

    entries: dict[str, Entry]
    segments: list[str]
    reasons: list[str]


def cache_folder() -> Path | None:
    """Return the folder of caches; None if the user wants none."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() in ("off", "0", "no"):
        return None
    base = Path(setting) if setting else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reflectrl"
    return base / "locate"


class Store:
    """Cache of a repository.

    Args:
        root: resolved folder of the repository.
        settings: what else the index depends on, such as filters.
        base: folder of caches; None to keep nothing.
    """

    def __init__(self, root: Path, settings: str, base: Path | None) -> None:
        about = f"{VERSION}\n{settings}\n{root}".encode("utf-8", "surrogateescape")
        self.folder = base / digest(about).hex()[:24] if base is not None else None

    def load(self) -> tuple[Listing, dict[str, Arrays]]:
        """Return the list, and the segments by name. Files of a missing segment are left out of the list."""
        try:
            if self.folder is None or not _is_own(self.folder):
                return Listing({}, [], []), {}
            listing = _parse(read(self.folder / _LIST))
        except (DamagedError, ValueError, KeyError, IndexError, OSError):
            return Listing({}, [], []), {}
        arrays: dict[str, Arrays] = {}
        for name in listing.segments:
            with suppress(DamagedError):
                arrays[name] = read(self.folder / (name + _SUFFIX))
        missing = {segment_index for segment_index, name in enumerate(listing.segments) if name not in arrays}
        if missing:
            listing.entries = {path: entry for path, entry in listing.entries.items() if entry.segment not in missing}
        return listing, arrays

    def save(self, listing: Listing, made: Mapping[str, Arrays]) -> None:
        """Write new segments and the list. A full or read-only disk is no error: the next command indexes again."""
        if self.folder is None:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_own(self.folder):
                return
            for name, arrays in made.items():
                write(self.folder / (name + _SUFFIX), pack(arrays))
            write(self.folder / _LIST, pack(_as_arrays(listing)))
            self._clean(set(listing.segments))

    def _clean(self, used: set[str]) -> None:
        """Remove old segments that the list does not name. Another process may still need a young one."""
        assert self.folder is not None
        for path in self.folder.iterdir():
            old = time.time() - path.lstat().st_mtime > UNUSED_SECONDS
            if old and path.name != _LIST and path.name.removesuffix(_SUFFIX) not in used:
                path.unlink()


def name_of(arrays: Arrays) -> str:
    """Return the name of a segment."""
    return digest(b"".join(digest(np.ascontiguousarray(array).tobytes()) for array in arrays.values())).hex()[:32]


def _is_own(folder: Path) -> bool:
    """Return whether a folder is this user's own: no link, and not writable by others."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _as_arrays(listing: Listing) -> Arrays:
    entries = listing.entries.values()
    return {
        "paths": _text("\0".join(listing.entries)),
        "segments": _text("\0".join(listing.segments)),
        "reasons": _text("\0".join(listing.reasons)),
        "sizes": np.array([entry.stamp.size for entry in entries], np.int64),
        "changed": np.array([entry.stamp.changed_ns for entry in entries], np.int64),
        "executable": np.array([entry.stamp.executable for entry in entries], np.uint8),
        "contents": np.frombuffer(b"".join(entry.content for entry in entries), np.uint8),
        "segment": np.array([entry.segment for entry in entries], np.int32),
        "number": np.array([entry.number for entry in entries], np.int32),
    }


def _parse(arrays: Arrays) -> Listing:
    contents = arrays["contents"].tobytes()
    columns = (arrays[name].tolist() for name in ("sizes", "changed", "executable", "segment", "number"))
    entries = {
        path: Entry(Stamp(size, changed, bool(executable)), contents[8 * row : 8 * row + 8], segment, number)
        for row, (path, size, changed, executable, segment, number) in enumerate(
            zip(_texts(arrays["paths"]), *columns, strict=True)
        )
    }
    return Listing(entries, _texts(arrays["segments"]), _texts(arrays["reasons"]))


def _text(text: str) -> NDArray[np.generic]:
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)


def _texts(array: NDArray[np.generic]) -> list[str]:
    text = array.tobytes().decode("utf-8", "surrogateescape")
    return text.split("\0") if text else []
