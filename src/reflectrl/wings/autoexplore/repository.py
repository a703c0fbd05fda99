"""Read-only repository that is indexed once and shared by any number of episodes.

    repository = Repository.open(".")
    repository.folder("src").files             # ("app.py", "cli.py")
    match repository.read("src/app.py"):
        case Text(text): ...
        case Unreadable(reason): ...

Only paths that were found when the repository was opened can be read, and only through `sandbox.py`. So no `..`, no
absolute path and no link can reach anything else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters, Index, decoded, index, is_text
from reflectrl.wings.autoexplore.names import Folder, shown, tree
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp, why
from reflectrl.wings.autoexplore.texts import Text, TextCache, Unreadable

READ_BYTES = 64 * 1024
"""Default limit on the part of a file that is read."""
CACHE_BYTES = 64 * 1024 * 1024
"""Memory of the cache of texts."""


class Repository:
    """Files of a repository after filtering, and their contents. Made by `Repository.open`.

    Names and sizes are those at the time of opening. A file that has changed since then is unreadable, because
    otherwise an episode would depend on the time at which it is played. Open the repository again to see the change. A
    copy (pickled, for another process) starts with an empty cache.
    """

    def __init__(self, sandbox: Sandbox, index: Index, cache_bytes: int = CACHE_BYTES) -> None:
        self._sandbox = sandbox
        self._stamps = index.files
        self._folders = tree(index.files)
        self._left_out = index.left_out
        self._cache = TextCache(cache_bytes)
        self.files = tuple(index.files)
        """Paths of all files, sorted."""

    @classmethod
    def open(
        cls, root: str | os.PathLike[str], filters: Filters | None = None, cache_bytes: int = CACHE_BYTES
    ) -> Repository:
        """Open a repository by walking it once.

        Args:
            root: folder of the repository.
            filters: files to leave out; by default, all that `Filters` can leave out.
            cache_bytes: memory of the cache of texts.

        Raises:
            UserError: the folder does not exist, cannot be read, or has no file to explore.
        """
        sandbox = Sandbox(root)
        indexed = index(sandbox, filters or Filters())
        if not indexed.files:
            left_out = ", ".join(f"{count} ({reason})" for reason, count in indexed.left_out.items())
            why = f"left out are {left_out}" if left_out else "it is empty"
            raise UserError(f"{str(sandbox.root)!r} holds no file to explore: {why}")
        return cls(sandbox, indexed, cache_bytes)

    @property
    def root(self) -> Path:
        """Return the folder of the repository as an absolute path without links."""
        return self._sandbox.root

    @property
    def folders(self) -> Mapping[str, Folder]:
        """Return path → contents of every folder with a file somewhere below it, sorted; the root is ""."""
        return MappingProxyType(self._folders)

    @property
    def left_out(self) -> Mapping[str, int]:
        """Return reason ("binary", "hidden" ...) → number of entries that were left out."""
        return MappingProxyType(self._left_out)

    def folder(self, path: str) -> Folder:
        """Return the contents of a folder.

        Raises:
            UserError: there is no such folder (for example, because the path is a file's).
        """
        try:
            return self._folders[path]
        except KeyError:
            raise UserError(f"there is no folder {shown(path)} in {self.root.name}") from None

    def size(self, path: str) -> int:
        """Return the size of a file in bytes; raise UserError if there is no such file."""
        return self.stamp(path).size

    def stamp(self, path: str) -> Stamp:
        """Return the properties of a file at the time of opening; raise UserError if there is no such file."""
        if path not in self._stamps:
            raise UserError(f"there is no file {shown(path)} in {self.root.name}")
        return self._stamps[path]

    def is_left_out(self, path: str) -> bool:
        """Return whether something on disk at a path is not a file of the repository, or lies behind a link."""
        try:
            return path not in self._stamps and self._sandbox.exists(path)
        except OSError:
            return True

    def read(self, path: str, limit: int = READ_BYTES) -> Text | Unreadable:
        """Read the text of a file, or its beginning.

        Args:
            path: one of `files`. Any other path gives `Unreadable`.
            limit: largest number of bytes to read.
        """
        if (cached := self._cache.get((path, limit))) is not None:
            return cached
        original = self.original(path, limit)
        if isinstance(original, Unreadable):
            return original
        data, stamp = original
        complete = len(data) == stamp.size
        if not is_text(data, complete):
            return Unreadable("it is a binary file")
        text = Text(decoded(data, complete), complete)
        self._cache.put((path, limit), text)
        return text

    def original(self, path: str, limit: int) -> tuple[bytes, Stamp] | Unreadable:
        """Read at most `limit` bytes of a file as they are on disk, without the cache."""
        if path not in self._stamps:
            return Unreadable("there is no such file")
        try:
            data, stamp = self._sandbox.read(path, limit)
        except OSError as error:
            return Unreadable(why(error))
        if stamp != self._stamps[path]:
            return Unreadable("it has changed since the repository was opened")
        return data, stamp

    def __contains__(self, path: object) -> bool:
        return path in self._stamps

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __repr__(self) -> str:
        return f"Repository({str(self.root)!r}: {len(self)} files)"
