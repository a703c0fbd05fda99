"""Copy-on-write overlay over a repository: changes stay in memory, and the files on disk are never written to.

overlay = Overlay(open_for_session("."))
overlay.replace("app/settings.py", "RETRIES = 3", "RETRIES = 5")
overlay.changed()        # (Change("app/settings.py", "modified"),)
print(overlay.patch())   # what `git apply` takes
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters
from reflectrl.wings.autoexplore.names import Folder, shown, tree
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.sandbox import Stamp
from reflectrl.wings.autoexplore.session.patch import Version, patch_of
from reflectrl.wings.autoexplore.texts import Unreadable

EDITED_BYTES = 4 * 1024 * 1024
"""Largest file that can be edited."""
LONGEST_NAME, LONGEST_PATH = 255, 4000
"""Limits of file names and paths in bytes, as file systems have them."""
FILTERS = Filters(outside=True, tests=False, binaries=False, non_ascii=False, configuration=True, min_characters=0)
"""Files of a session. Tests and binary files are among them, since a check may need them."""

Kind = Literal["added", "modified", "deleted"]


class Change(NamedTuple):
    """A file that differs from the one on disk."""

    path: str
    kind: Kind


class Files(Protocol):
    """Files under an overlay: a `Repository`, or one in memory. Its methods are documented there."""

    @property
    def files(self) -> tuple[str, ...]: ...

    def original(self, path: str, limit: int) -> tuple[bytes, Stamp] | Unreadable: ...

    def stamp(self, path: str) -> Stamp: ...

    def is_left_out(self, path: str) -> bool: ...

    def __contains__(self, path: object) -> bool: ...


def open_for_session(root: str | os.PathLike[str]) -> Repository:
    """Open a repository with its tests and binary files, but without hidden and ignored ones.

    Raises:
        UserError: the folder does not exist, cannot be read, or has no file.
    """
    return Repository.open(root, FILTERS)


class Overlay:
    """Files of a repository with some of them changed.

    Args:
        repository: the files as they are on disk.
    """

    def __init__(self, repository: Files) -> None:
        self.repository = repository
        self._changes: dict[str, bytes | None] = {}
        """Path → new content; None if the file is deleted. Unchanged files are not in it."""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths of all files that are not deleted, sorted."""
        remaining = {path for path in self.repository.files if self._changes.get(path, b"") is not None}
        return tuple(sorted(remaining | {path for path, data in self._changes.items() if data is not None}))

    def folder(self, path: str) -> Folder:
        """Return the contents of a folder; raise UserError if there is no such folder."""
        folders = tree(self.files)
        if path not in folders:
            raise UserError(f"there is no folder {shown(path)}")
        return folders[path]

    def data(self, path: str, limit: int = EDITED_BYTES) -> bytes:
        """Return a file's content; raise UserError if there is none, or more than `limit` bytes."""
        if path in self._changes:
            changed = self._changes[path]
            if changed is None:
                raise UserError(f"{shown(path)} was deleted in this session")
            return changed
        return self._original(path, limit)

    def read(self, path: str) -> str:
        """Return a file's text; raise UserError if it cannot be edited: it is not UTF-8, or too large."""
        try:
            return self.data(path).decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{shown(path)} is not UTF-8 text, so it cannot be edited") from None

    # ---- changes ---------------------------------------------------------------------------------------------------

    def write(self, path: str, text: str) -> None:
        """Write a file, new or not; raise UserError if it cannot be written there."""
        if path in self.files:
            self.read(path)  # what cannot be read as text would be lost
        self.put(path, text.encode("utf-8", "surrogateescape"))

    def put(self, path: str, data: bytes) -> None:
        """Set a file's content; raise UserError if the path is unsafe, taken by a folder, or the content too large."""
        self._require_writable(path)
        if len(data) > EDITED_BYTES:
            raise UserError(f"{shown(path)} would have {len(data):,} bytes; at most {EDITED_BYTES:,} can be edited")
        if path in self.repository and self._original_or_none(path) == data:
            self._changes.pop(path, None)
        else:
            self._changes[path] = data

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace a passage that occurs exactly once in a file; raise UserError otherwise."""
        text = self.read(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise UserError(f"the passage occurs {count} times in {shown(path)}; it has to occur exactly once")
        self.write(path, text.replace(old, new))

    def delete(self, path: str) -> None:
        """Delete a file; raise UserError if there is no such file."""
        if path not in self.files:
            raise UserError(f"there is no file {shown(path)}")
        if path in self.repository:
            self._original(path, EDITED_BYTES)  # a patch holds the content that it deletes
            self._changes[path] = None
        else:
            del self._changes[path]

    def restore(self, path: str) -> None:
        """Undo all changes of a file; raise UserError if it has none."""
        if path not in self._changes:
            raise UserError(f"{shown(path)} is unchanged")
        former = self._changes.pop(path)
        try:
            if path in self.repository:
                self._require_writable(path)
        except UserError:
            self._changes[path] = former
            raise

    # ---- what has changed ------------------------------------------------------------------------------------------

    def changed(self) -> tuple[Change, ...]:
        """Return the changed files, sorted by path."""
        kinds = []
        for path, data in sorted(self._changes.items()):
            kind: Kind = "deleted" if data is None else "modified" if path in self.repository else "added"
            kinds.append(Change(path, kind))
        return tuple(kinds)

    def patch(self) -> str:
        """Return all changes as a patch for `git apply`; "" if there are none."""
        versions = []
        for change in self.changed():
            before = None
            if change.path in self.repository:
                before = Version(self._original(change.path, EDITED_BYTES), self.executable(change.path))
            data = self._changes[change.path]
            after = None if data is None else Version(data, before is not None and before.executable)
            versions.append((change.path, before, after))
        return "".join(patch_of(path, before, after) for path, before, after in versions)

    def executable(self, path: str) -> bool:
        """Return whether a file may be executed. Files that were added may not."""
        return path in self.repository and self.repository.stamp(path).executable

    def get_state(self) -> Mapping[str, bytes | None]:
        """Return all changes."""
        return dict(self._changes)

    def set_state(self, state: Mapping[str, bytes | None]) -> None:
        """Restore a value of `get_state`."""
        self._changes = dict(state)

    # ---- paths -----------------------------------------------------------------------------------------------------

    def _original(self, path: str, limit: int) -> bytes:
        original = self.repository.original(path, limit + 1)
        if isinstance(original, Unreadable):
            raise UserError(f"{shown(path)} cannot be read: {original.reason}")
        if len(original[0]) > limit:
            raise UserError(f"{shown(path)} has more than {limit:,} bytes")
        return original[0]

    def _original_or_none(self, path: str) -> bytes | None:
        try:
            return self._original(path, EDITED_BYTES)
        except UserError:
            return None

    def _require_writable(self, path: str) -> None:
        names = path.split("/")
        if "" in names or "." in names or ".." in names or "\0" in path or not path:
            raise UserError(f"{shown(path)} is not a path below the repository's root")
        if any(name.casefold() == ".git" for name in names):
            raise UserError(f"{shown(path)} lies in git's own folder, which stays as it is")
        try:
            encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        except UnicodeEncodeError:
            raise UserError(f"{shown(path)} is not a file name: it holds an unpaired surrogate") from None
        if max(map(len, encoded)) > LONGEST_NAME or sum(map(len, encoded)) + len(names) > LONGEST_PATH:
            raise UserError("the path is longer than file systems allow")
        files = set(self.files) - {path}
        above = {"/".join(names[:i]) for i in range(1, len(names))}
        if blocking := sorted(above & files):
            raise UserError(f"{shown(blocking[0])} is a file, so nothing can lie below it")
        if any(file.startswith(f"{path}/") for file in files):
            raise UserError(f"{shown(path)} is a folder")
        if path not in self.repository and self.repository.is_left_out(path):
            raise UserError(f"{shown(path)} exists on disk but is left out of the session (ignored, hidden or a link)")
