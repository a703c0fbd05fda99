"""A disk that is full from some file on, without a disk of its own: files of this process may not grow any more.

The operating system itself refuses every write then, whichever library writes; it says "File too large" in place of
"No space left on device".
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FullDisk:
    """The files that were opened for writing while a disk was watched, and which of them was the first to find it full.

    Attributes:
        after: how many files are opened for writing before the disk is full.
        opened: the files that were opened for writing, in order.
    """

    after: int
    opened: list[str] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether the disk became full."""
        return len(self.opened) > self.after

    def notice(self, path: Any) -> None:
        """Count a file that is opened for writing."""
        self.opened.append(os.fsdecode(path))
        if self.is_full:
            _limit(0)


_watched: list[FullDisk] = []


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched:
        path, _, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        if writes and isinstance(path, str | bytes) and not os.fsdecode(path).startswith("/dev/"):
            _watched[-1].notice(path)


sys.addaudithook(_notice)  # cannot be taken back; it does nothing while no disk is watched


def _limit(size: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@contextmanager
def full_disk(after: int) -> Iterator[FullDisk]:
    """Within the block, no file takes another byte once so many files were opened for writing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    disk = FullDisk(after)
    _watched.append(disk)
    try:
        yield disk
    finally:
        _watched.pop()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file in a folder and the folders in it, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
