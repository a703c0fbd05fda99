"""Repository that exists in memory only, for tasks that are made by the thousand."""

from __future__ import annotations

from collections.abc import Mapping

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.sandbox import Stamp
from reflectrl.wings.autoexplore.texts import Unreadable


class MemoryRepository:
    """Files of a project, with everything that an `Overlay` needs.

    Args:
        texts: path → text of every file.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._data = {path: text.encode("utf-8") for path, text in texts.items()}
        self.files = tuple(sorted(self._data))

    def original(self, path: str, limit: int) -> tuple[bytes, Stamp] | Unreadable:
        """Return at most `limit` bytes of a file."""
        if path not in self._data:
            return Unreadable("there is no such file")
        return self._data[path][:limit], self.stamp(path)

    def stamp(self, path: str) -> Stamp:
        """Return the properties of a file; raise UserError if there is no such file."""
        if path not in self._data:
            raise UserError(f"there is no file {shown(path)}")
        return Stamp(len(self._data[path]), 0, executable=False)

    def is_left_out(self, path: str) -> bool:
        """Return False: every file is in the repository."""
        return False

    def __contains__(self, path: object) -> bool:
        return path in self._data
