"""A disk that is full from some file on, without a disk of its own: files of this process may not grow any more.

The operating system itself refuses every write then, whichever library writes; it says "File too large" in place of
"No space left on device".
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main


@dataclass
class FullDisk:
    """The files that were opened for writing while a disk was watched, and which of them was the first to find it full.

    Attributes:
        after: how many files are opened for writing before the disk is full.
        room: bytes that a file may have then.
        opened: the files that were opened for writing, in order.
    """

    after: int
    room: int = 0
    opened: list[str] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether the disk became full."""
        return len(self.opened) > self.after

    def notice(self, path: Any) -> None:
        """Count a file that is opened for writing."""
        self.opened.append(os.fsdecode(path))
        if self.is_full:
            _limit(self.room)


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
def full_disk(after: int, room: int = 0) -> Iterator[FullDisk]:
    """Within the block, no file grows beyond so many bytes once so many files were opened for writing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    disk = FullDisk(after, room)
    _watched.append(disk)
    try:
        yield disk
    finally:
        _watched.pop()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file in a folder and the folders in it, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def walked(words: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Carry out a command with a disk that is full from the first file on, from the second on, and so on to the end.

    Each time it has to end with one line and exit code 2, leave the files that were there as they were, and leave no
    others but some that are empty or that the undisturbed command leaves as well; at last it has to succeed.

    Args:
        folder: where it is carried out, and what is there before. It is put back each time.

    Returns:
        The lines that were said.
    """
    before, lines, partial = files_in(folder), list[str](), list[dict[str, bytes]]()
    while True:
        with full_disk(len(lines)) as disk:
            code = main(words)
        err = capsys.readouterr().err
        now = files_in(folder)
        if not disk.is_full:
            break
        if code == 0:  # what was opened then did not want to grow
            assert partial and not err
            lines.append("")
            _put_back(folder, before)
            continue
        assert code == 2 and err.startswith("reflectrl: ") and err.count("\n") == 1, (disk.opened, code, err)
        assert "cannot be written" in err and "None" not in err and "Error" not in err, err
        assert {name: now.get(name) for name in before} == before, f"changed when {disk.opened[-1]} had no room"
        partial.append({name: content for name, content in now.items() if name not in before and content})
        lines.append(err)
        _put_back(folder, before)
    assert code == 0 and lines, err
    for found in partial:
        assert not set(found) - set(now), "files that are not whole were left"
    return lines


def _put_back(folder: Path, before: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in before.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
