"""Cache of indexes in the user's cache folder: one folder per repository, with segments and a list of the files.

A segment is named by its digest and never changes. The list is written as a whole only now and then; a small file
beside it, named after it, says what has changed since. Both are replaced at once, so two processes can share the
folder: the later one wins, and what it does not know is removed once it is an hour old. What is missing, damaged, or
owned by another user is built again.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.arrays import DamagedError, digest, pack, read, write
from reflectrl.wings.autoexplore.locate.segments import are_consistent
from reflectrl.wings.autoexplore.sandbox import Stamp

VERSION = 2
"""Increase it whenever the content of segments changes. Caches of other versions are not read."""
VARIABLE = "REFLECTRL_CACHE"
"""Environment variable with the folder of caches; "off" disables them."""
UNUSED_SECONDS = 3600
UNUSED_DAYS = 30
"""Time after which an index that no command has used is removed. It can be made again."""
MOST_RECENT = 512
"""Number of files that change before the list is written as a whole again."""
_LIST = "files"
_SUFFIX, _RECENT_SUFFIX = ".segment", ".recent"
_NAME = re.compile(r"[0-9a-f]{24}")
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
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
        segments: names of the segments; "" for a number that no file has any more.
        reasons: reasons for leaving out files.
    """

    entries: dict[str, Entry]
    segments: list[str]
    reasons: list[str]

    def former(self, path: str) -> tuple[Stamp, str | None] | None:
        """Return the stamp of a file, and the reason for leaving it out, or None; None if it is not in the list."""
        entry = self.entries.get(path)
        if entry is None:
            return None
        return entry.stamp, self.reasons[entry.number] if entry.segment < 0 else None


def cache_folder() -> Path | None:
    """Return the folder of caches; None if the user wants none, or has no home folder."""
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() in ("off", "0", "no"):
        return None
    if setting:
        return Path(setting) / "locate"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # a relative one must be ignored: XDG Base Directory Specification, 0.8
        return given / "reflectrl" / "locate"
    try:
        home = Path.home()
    except RuntimeError:  # neither $HOME nor an account, as in a container of `docker run -u`
        return None
    return home / ".cache" / "reflectrl" / "locate" if home.is_absolute() else None


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
        self._root = root
        self._list_name = ""
        self._recent: dict[str, None] = {}

    def load(self) -> tuple[Listing, dict[int, Arrays]]:
        """Return the list, and the segments by number. Files of a missing segment are left out of the list."""
        try:
            if self.folder is None or not _is_own(self.folder):
                return Listing({}, [], []), {}
            saved = read(self.folder / _LIST)
            listing = _parse(saved)
        except (DamagedError, ValueError, KeyError, IndexError, OSError):
            return Listing({}, [], []), {}
        self._list_name = saved["name"].tobytes().hex() if "name" in saved else ""
        with suppress(OSError):
            os.utime(self.folder / _LIST)  # it is in use
        with suppress(DamagedError, ValueError, KeyError, IndexError):
            listing = self._with_recent(listing, read(self.folder / (self._list_name + _RECENT_SUFFIX)))
        arrays: dict[int, Arrays] = {}
        for number, name in enumerate(listing.segments):
            try:
                if name:
                    arrays[number] = _segment(self.folder / (name + _SUFFIX))
            except DamagedError:
                listing.segments[number] = ""
        sizes = {number: len(segment["lengths"]) for number, segment in arrays.items()}
        for path in [path for path, entry in listing.entries.items() if not _is_held(entry, listing, sizes)]:
            del listing.entries[path]
            self._recent[path] = None  # its entry in the saved list must not be taken for one of a later segment
        return listing, arrays

    def _with_recent(self, listing: Listing, saved: Arrays) -> Listing:
        """Bring a list up to date with the changes that were saved since."""
        recent, gone = _parse(saved), _texts(saved["gone"])
        self._recent = dict.fromkeys((*recent.entries, *gone))
        entries = {**listing.entries, **recent.entries}
        for path in gone:
            entries.pop(path, None)
        return Listing(entries, recent.segments, recent.reasons)

    def note(self, changed: Iterable[str]) -> None:
        """Note paths whose entries in the list are about to change, or to go, so that `save` writes them.

        What is noted is written even if something fails in between. Otherwise, an entry on the disk could be taken for
        one of a later segment with the same number.
        """
        self._recent.update(dict.fromkeys(changed))

    def save(self, listing: Listing, made: Mapping[str, Arrays]) -> None:
        """Write new segments, and what has changed in the list.

        A full or read-only disk is no error: the next command indexes again.

        Args:
            listing: list of all files.
            made: new segments by name.
        """
        if self.folder is None:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_own(self.folder):
                return
            for name, arrays in made.items():
                write(self.folder / (name + _SUFFIX), pack(arrays))
            if not self._list_name or len(self._recent) > MOST_RECENT:
                list_name = os.urandom(8)
                about = {"name": np.frombuffer(list_name, np.uint8), "root": _text(str(self._root))}
                write(self.folder / _LIST, pack({**_as_arrays(listing), **about}))
                self._list_name, self._recent = list_name.hex(), {}
            else:
                write(self.folder / (self._list_name + _RECENT_SUFFIX), pack(self._recent_arrays(listing)))
            self._clean({*(name + _SUFFIX for name in listing.segments), self._list_name + _RECENT_SUFFIX, _LIST})
            for index in saved_indexes(self.folder.parent):
                if time.time() - index.used > UNUSED_DAYS * 86400:
                    index.remove()

    def _recent_arrays(self, listing: Listing) -> Arrays:
        entries = {path: listing.entries[path] for path in self._recent if path in listing.entries}
        gone = [path for path in self._recent if path not in listing.entries]
        return {**_as_arrays(Listing(entries, listing.segments, listing.reasons)), "gone": _text("\0".join(gone))}

    def _clean(self, used: set[str]) -> None:
        """Remove old files that are not in use. Another process may still need a young one."""
        assert self.folder is not None
        for path in self.folder.iterdir():
            old = time.time() - path.lstat().st_mtime > UNUSED_SECONDS
            if old and path.name not in used:
                path.unlink()


def _segment(path: Path) -> Arrays:
    """Read a segment. Raise DamagedError if its arrays do not fit together, although their digest is right."""
    arrays = read(path)
    if not are_consistent(arrays):
        raise DamagedError("its arrays are no segment")
    return arrays


def _is_held(entry: Entry, listing: Listing, sizes: Mapping[int, int]) -> bool:
    """Return whether there is what an entry of a list refers to: a file of a segment, or a reason."""
    limit = len(listing.reasons) if entry.segment == -1 else sizes.get(entry.segment, 0)
    return 0 <= entry.number < limit


@dataclass(frozen=True)
class SavedIndex:
    """Index in the folder of caches.

    Attributes:
        folder: its folder.
        used: time at which it was last used or written, in seconds.
        size: size of its files in bytes.
    """

    folder: Path
    used: float
    size: int

    @property
    def root(self) -> str:
        """Return the folder that was indexed; "" for an index of another version, or a damaged one."""
        try:
            return read(self.folder / _LIST)["root"].tobytes().decode("utf-8", "surrogateescape")
        except (DamagedError, KeyError):
            return ""

    def remove(self) -> None:
        """Remove the index, and nothing else that somebody may have put there."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.name == _LIST or path.suffix in (_SUFFIX, _RECENT_SUFFIX, ".tmp"):
                    path.unlink()
            self.folder.rmdir()


def saved_indexes(base: Path) -> list[SavedIndex]:
    """Return the indexes in a folder of caches that belong to this user, last used first."""
    indexes = list[SavedIndex]()
    with suppress(OSError):
        for folder in base.iterdir():
            if _NAME.fullmatch(folder.name) and _is_own(folder):
                about = [path.lstat() for path in folder.iterdir()]
                used = max([folder.lstat().st_mtime, *(status.st_mtime for status in about)])
                indexes.append(SavedIndex(folder, used, sum(status.st_size for status in about)))
    return sorted(indexes, key=lambda index: -index.used)


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
        "status": np.array([entry.stamp.status_ns for entry in entries], np.int64),
        "inodes": np.array([entry.stamp.inode for entry in entries], np.uint64),
        "contents": np.frombuffer(b"".join(entry.content for entry in entries), np.uint8),
        "segment": np.array([entry.segment for entry in entries], np.int32),
        "number": np.array([entry.number for entry in entries], np.int32),
    }


def _parse(arrays: Arrays) -> Listing:
    contents = arrays["contents"].tobytes()
    if any(array.dtype.kind not in "iu" for array in arrays.values()) or len(contents) != 8 * len(arrays["sizes"]):
        raise DamagedError("its arrays are no list of files")
    columns = (arrays[name].tolist() for name in ("sizes", "changed", "executable", "status", "inodes"))
    locations = zip(arrays["segment"].tolist(), arrays["number"].tolist(), strict=True)
    entries = {
        path: Entry(Stamp(size, changed, bool(executable), status, inode), contents[8 * row : 8 * row + 8], *location)
        for row, (path, size, changed, executable, status, inode, location) in enumerate(
            zip(_texts(arrays["paths"]), *columns, locations, strict=True)
        )
    }
    return Listing(entries, _texts(arrays["segments"]), _texts(arrays["reasons"]))


def _text(text: str) -> NDArray[np.generic]:
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)


def _texts(array: NDArray[np.generic]) -> list[str]:
    text = array.tobytes().decode("utf-8", "surrogateescape")
    return text.split("\0") if text else []
