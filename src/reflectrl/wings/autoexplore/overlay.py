"""Writing, in memory only: changes that lie over a repository, and can be exported as a patch.

The repository's own files are never touched. Nothing is written to disk but by `save_patch`, to a file that the caller
names and that does not exist yet.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reflectrl.types import UserError
from reflectrl.wings.autoexplore.names import parent, shown
from reflectrl.wings.autoexplore.patch import Change
from reflectrl.wings.autoexplore.repository import READ_BYTES, Repository
from reflectrl.wings.autoexplore.texts import Text, Unreadable
from reflectrl.wings.autoexplore.tree import Folder, tree

LARGEST = 256 * 1024
"""Bytes of the largest file that can be changed: finding the differences takes time."""
SESSION_BYTES = 16 * 1024 * 1024
"""Bytes of text that one session may hold."""


class File(NamedTuple):
    """A text file."""

    text: str
    executable: bool = False


class Overlay:
    """A session in which the files of a repository can be written, deleted and renamed.

    A change that is not possible raises `UserError`, in one line, and changes nothing: a path that would leave the
    repository, a file where a folder is, a file that is not UTF-8 text, or too large.
    """

    def __init__(self, repository: Repository, most_bytes: int = SESSION_BYTES) -> None:
        self.repository = repository
        self._most_bytes = most_bytes
        self._before: dict[str, File | None] = {}
        self._after: dict[str, File | None] = {}
        """Every path that was ever touched, as it was before and is now; None where there is no file."""
        self._folders: dict[str, Folder] | None = None

    # ---- looking -----------------------------------------------------------------------------------------------------

    @property
    def files(self) -> list[str]:
        """Paths of all files as they are now, sorted."""
        untouched = (path for path in self.repository if path not in self._after)
        return sorted({*untouched, *(path for path, file in self._after.items() if file is not None)})

    def folder(self, path: str) -> Folder:
        """What lies in a folder now; UserError if there is none."""
        if self._folders is None:
            self._folders = tree(self.files)
        if path not in self._folders:
            raise UserError(f"there is no folder {shown(path)}")
        return self._folders[path]

    def __contains__(self, path: str) -> bool:
        return self._after[path] is not None if path in self._after else path in self.repository

    def read(self, path: str, limit: int = READ_BYTES) -> Text | Unreadable:
        """As `Repository.read`, with the changes of this session."""
        if path not in self._after:
            return self.repository.read(path, limit)
        file = self._after[path]
        if file is None:
            return Unreadable("there is no such file")
        data = file.text.encode()
        return Text(data[:limit].decode(errors="ignore"), len(data) <= limit)

    # ---- changing ----------------------------------------------------------------------------------------------------

    def write(self, path: str, text: str) -> None:
        """Make a file, or replace what is in it."""
        executable = False
        if path in self:
            executable = self._file(path).executable
        else:
            self._check_place(path)
        self._check_text(path, text)
        self._set(path, File(text, executable))

    def delete(self, path: str) -> None:
        """Take a file away."""
        self._file(path)  # it must be there, and be text, for a patch to hold it
        self._set(path, None)

    def rename(self, path: str, to: str) -> None:
        """Move a file to where nothing is yet."""
        file = self._file(path)
        if to in self:
            raise UserError(f"there is a file {shown(to)} already")
        self._check_place(to, leaving=path)
        self._set(path, None)
        self._set(to, file)

    def _set(self, path: str, file: File | None) -> None:
        if path not in self._before:
            self._before[path] = self._file(path) if path in self.repository else None
        self._after[path] = file
        self._folders = None

    def _file(self, path: str) -> File:
        """A file as it is now."""
        if path not in self:
            raise UserError(f"there is no file {shown(path)}")
        if (file := self._after.get(path)) is not None:
            return file
        found = self.repository.original(path, LARGEST + 1)
        if isinstance(found, Unreadable):
            raise UserError(f"{shown(path)} cannot be changed: {found.reason}")
        data, stamp = found
        if len(data) > LARGEST:
            raise UserError(f"{shown(path)} is too large to be changed (more than {LARGEST:,} bytes)")
        try:
            return File(_checked(data.decode()), stamp.executable)
        except ValueError:
            raise UserError(f"{shown(path)} cannot be changed: it is not UTF-8 text") from None

    def _check_text(self, path: str, text: str) -> None:
        try:
            size = len(_checked(text).encode())
        except ValueError:
            raise UserError(f"what is to be written to {shown(path)} is not text") from None
        if size > LARGEST:
            raise UserError(f"{shown(path)} would be too large (more than {LARGEST:,} bytes)")
        held = sum(len(file.text.encode()) for name, file in self._after.items() if file is not None and name != path)
        if held + size > self._most_bytes:
            raise UserError(f"{shown(path)} is too much: a session holds {self._most_bytes:,} bytes")

    def _check_place(self, path: str, leaving: str | None = None) -> None:
        """Whether a new file may be there; `leaving` is one that goes in the same change."""
        if not _is_inside(path):
            raise UserError(f"{shown(path)} is no path of a file in the repository")
        above = list(_above(path))
        for folder in above:
            if folder in self and folder != leaving:
                raise UserError(f"{shown(folder)} is a file, so nothing can be in it")
        if any(file.startswith(f"{path}/") for file in self.files if file != leaving):
            raise UserError(f"{shown(path)} is a folder")
        was_ours = any(place in self._after or place == leaving for place in (path, *above))
        if not was_ours and self.repository.is_taken(path):
            raise UserError(f"something that this view leaves out is at {shown(path)}")

    # ---- what has changed --------------------------------------------------------------------------------------------

    @property
    def changes(self) -> list[Change]:
        """Every file that is not as it was, sorted by path."""
        paths = sorted(path for path, file in self._after.items() if file != self._before[path])
        return [self._change(path) for path in paths]

    def _change(self, path: str) -> Change:
        before, after = self._before[path], self._after[path]
        file = after or before
        return Change(path, before and before.text, after and after.text, file is not None and file.executable)

    def patch(self) -> str:
        """All changes, for `git apply` in the root; "" if there are none. A renamed file goes and another comes."""
        gone_first = sorted(self.changes, key=lambda change: change.kind != "deleted")  # a folder may come in its place
        return "".join(change.patch() for change in gone_first)

    def save_patch(self, path: str | os.PathLike[str]) -> None:
        """Write the patch to a new file; UserError if that is not possible, or if something is there already."""
        try:
            with Path(path).open("x", encoding="utf-8", newline="") as file:
                file.write(self.patch())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"the patch cannot be saved to {str(path)!r}: {reason}") from None


def _checked(text: str) -> str:
    if "\0" in text:
        raise ValueError("a null character")
    return text


def _above(path: str) -> Iterator[str]:
    """The folders above a path, but for the root."""
    while path := parent(path):
        yield path


def _is_inside(path: str) -> bool:
    """Whether this is a path in POSIX form that names something below the root, and nothing of git's own."""
    try:
        names = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:
        return False
    forbidden = (b"", b".", b"..", b".git")
    return all(name.lower() not in forbidden and b"\0" not in name and len(name) < 256 for name in names)
