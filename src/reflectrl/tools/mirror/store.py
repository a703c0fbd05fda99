"""Snapshots of a folder at an address that fsspec knows: an object store, a server, a disk.

A file's content is stored under its digest (`files/<sha256>`), so a file that does not change, or only moves, is copied
once. A snapshot is a numbered list of names and digests (`snapshots/<number>.json`). It is written last, so a copy that
was cut off leaves the previous snapshot intact. A fetch takes the latest complete snapshot, and checks every file. If
two machines work on one address, the second to write a number sees the other's snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from reflectrl.core.advice import install
from reflectrl.core.config.folders import writing
from reflectrl.core.digests import DIGESTS, seal, unseal
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError

OWN = ".mirror.json"
"""File of a run folder that records the folder's snapshot."""
KEPT = 2
"""Number of snapshots that are kept at the address."""
PIECE = 2**22
"""Number of bytes that are copied at a time."""


class Moved(Exception):
    """A file was replaced while its folder was read, so the snapshot has to be taken again."""


@dataclass(frozen=True)
class Snapshot:
    """The content of an address at one moment.

    Attributes:
        number: number of the snapshot, from 1.
        writer: random name of the command that wrote it.
        files: digest of each file, by its path within the folder.
    """

    number: int
    writer: str
    files: dict[str, str] = field(default_factory=dict)


class Store:
    """The content of an address, as a single command reads and writes it.

    Raises:
        UserError: fsspec is not installed, or does not know the address. All methods raise one if the content at the
            address cannot be used.
    """

    def __init__(self, address: str) -> None:
        self.address, self.writer, self.begun = address.rstrip("/"), uuid.uuid4().hex, 0
        self._sizes: dict[str, int] | None = None
        self._digests: dict[tuple[str, int, int, int], str] = {}
        try:
            import fsspec
        except ImportError as error:
            raise UserError(f"--mirror needs fsspec; {install('mirror')}") from error
        with self._reached():
            self.fs, self.root = fsspec.core.url_to_fs(self.address)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn any error at the address, within the block, into one line."""
        try:
            yield
        except (UserError, Moved):
            raise
        except Exception as error:
            raise UserError(f"{self.address}: {one_line(error)[:200]}") from error

    # ---- what is there -----------------------------------------------------------------------------------------------

    def latest(self) -> Snapshot | None:
        """Return the last complete snapshot; None if there is none."""
        with self._reached():
            for number in sorted(self._numbers(), reverse=True):
                try:
                    found = json.loads(unseal(self.fs.cat_file(self._snapshot(number)).decode()))
                    return Snapshot(number, str(found["writer"]), {str(k): str(v) for k, v in found["files"].items()})
                except (ValueError, KeyError, AttributeError):
                    continue  # it was being written when its writer was ended
        return None

    def _numbers(self) -> list[int]:
        place = f"{self.root}/snapshots"
        self.fs.invalidate_cache()
        names = [PurePosixPath(path).stem for path in self.fs.ls(place, detail=False)] if self.fs.exists(place) else []
        return [int(name) for name in names if name.isdecimal()]

    def _snapshot(self, number: int) -> str:
        return f"{self.root}/snapshots/{number}.json"

    def _file(self, digest: str) -> str:
        return f"{self.root}/files/{digest}"

    # ---- fetching ----------------------------------------------------------------------------------------------------

    def fetch(self, folder: Path, snapshot: Snapshot) -> None:
        """Make a folder from a snapshot, in place of an empty one. It has another name until it is complete.

        Raises:
            UserError: a file has changed since it was written, or its name leads out of the folder.
        """
        fresh = folder.with_name(f"{folder.name}.fetching")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for name, digest in snapshot.files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name:
                raise UserError(f"{self.address} names a file outside of the folder: {name!r}")
            target = fresh / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._reached(), self.fs.open(self._file(digest), "rb") as source, target.open("wb") as file:
                found = _copied(source, file)
            if found != digest:
                raise UserError(f"{self.address}: {name} is not what was written there ({digest[:12]})")
        _note(fresh, self.address, snapshot)
        shutil.rmtree(folder, ignore_errors=True)  # there is nothing in it but locks
        fresh.rename(folder)

    # ---- copying -----------------------------------------------------------------------------------------------------

    def copy(self, folder: Path) -> None:
        """Take a snapshot of a folder in which another process may be at work.

        Raises:
            Moved: a file was replaced meanwhile. The next attempt may succeed.
            UserError: another command has written a snapshot since this one began.
        """
        latest = self.latest()
        if latest is not None and latest.writer != self.writer and latest.number > self.begun:
            raise UserError(f"another command is at work on {self.address}; end one of them")
        files = {}
        for path in ordered(folder):
            files[str(PurePosixPath(path.relative_to(folder)))] = self._copy_file(path)
        _require_whole(folder, files)
        if latest is not None and latest.writer == self.writer and latest.files == files:
            return
        number = latest.number + 1 if latest is not None else 1
        line = seal(json.dumps({"writer": self.writer, "files": files}, separators=(",", ":")))
        _note(folder, self.address, Snapshot(number, self.writer))  # before: a kill must not leave the folder behind
        with self._reached():
            self.fs.makedirs(f"{self.root}/snapshots", exist_ok=True)
            self.fs.pipe_file(self._snapshot(number), line.encode())
        self._clear({*files.values(), *(latest.files.values() if latest else ())}, number - KEPT)

    def _copy_file(self, path: Path) -> str:
        """Copy a file's present content, unless the address has it already, and return its digest."""
        try:
            with path.open("rb") as source:
                now = os.fstat(source.fileno())
                key = (str(path), now.st_ino, now.st_size, now.st_mtime_ns)
                if key not in self._digests:
                    self._digests[key] = _copied(source, None, now.st_size)
                    source.seek(0)
                digest = self._digests[key]
                with self._reached():
                    if self._known().get(digest) != now.st_size:
                        with self.fs.open(self._file(digest), "wb") as target:
                            copied = _copied(source, target, now.st_size)
                        if copied != digest:
                            raise Moved(path)
                        self._known()[digest] = now.st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Moved(path) from error
        return digest

    def _known(self) -> dict[str, int]:
        """Return the digests of the files at the address, with their sizes, since a copy may have been cut off."""
        if self._sizes is None:
            self.fs.makedirs(f"{self.root}/files", exist_ok=True)
            there = self.fs.ls(f"{self.root}/files", detail=True)
            self._sizes = {PurePosixPath(one["name"]).name: int(one["size"] or 0) for one in there}
        return self._sizes

    def _clear(self, wanted: set[str], oldest: int) -> None:
        """Remove snapshots up to a number, and files that are in no snapshot any more."""
        with self._reached():
            for number in [one for one in self._numbers() if one <= oldest]:
                self.fs.rm_file(self._snapshot(number))
            for digest in self._known().keys() - wanted:
                self.fs.rm_file(self._file(digest))
                del self._known()[digest]


def _note(folder: Path, address: str, snapshot: Snapshot) -> None:
    """Record in a folder the snapshot that it is at."""
    noted = {"address": address, "number": snapshot.number, "writer": snapshot.writer}
    from reflectrl.learn.checkpoint import write_text  # imports torch, which a dry run does without

    with writing(folder / OWN):
        write_text(folder / OWN, json.dumps(noted) + "\n")


def at(folder: Path) -> tuple[str, int, str]:
    """Return a folder's address, and number and writer of its last snapshot; ("", 0, "") if it has none."""
    try:
        found: dict[str, Any] = json.loads((folder / OWN).read_text(encoding="utf-8"))
        return str(found["address"]), int(found["number"]), str(found["writer"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0, ""


def ordered(folder: Path) -> list[Path]:
    """Return the files of a run folder, with weights and states first.

    If a log is longer than the state, it is cut when training continues. A log that is shorter would lack lines.
    """
    found = [
        Path(parent, name)
        for parent, folders, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and ".writing" not in str(Path(parent, name).relative_to(folder))
    ]
    return sorted(found, key=lambda path: (path.relative_to(folder).parts[0] != "checkpoints", path))


def _require_whole(folder: Path, files: dict[str, str]) -> None:
    """Raise Moved if a folder was replaced between two of its files."""
    for name in files:
        place = PurePosixPath(name)
        if place.name == DIGESTS:
            try:
                noted = json.loads((folder / place).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise Moved(name) from error
            if any(files.get(str(place.parent / one)) != digest for one, digest in noted.items()):
                raise Moved(name)


def _copied(source: BinaryIO, target: BinaryIO | None, size: int | None = None) -> str:
    """The digest of a stream's first `size` bytes (None: of all), which are copied into another one if there is one."""
    digest, left = hashlib.sha256(), size
    while data := source.read(PIECE if left is None else min(PIECE, left)):
        digest.update(data)
        left = None if left is None else left - len(data)
        if target is not None:
            target.write(data)
    return digest.hexdigest()
