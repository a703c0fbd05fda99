"""Log of episodes: append to it, read it (errors name file and line), merge several."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from reflectrl.core.config.folders import writing
from reflectrl.core.episodes.schema import from_line, to_line
from reflectrl.core.json_lines import read_json_lines
from reflectrl.core.plugins import one_line, reason
from reflectrl.core.types import Episode, Task, UserError

BLOCK = 1 << 20
"""Number of bytes that are read at a time to find the end of the last complete line."""


def read_episodes(path: Path) -> Iterator[Episode]:
    """Read the episodes of a log, in order.

    Raises:
        UserError: the file cannot be read, or a line is corrupt. Names file and line number.
    """
    remedy = "repair or remove this line (a run's own log may be deleted: the run writes it again)"
    for _, episode in read_json_lines(path, from_line, "corrupt episode", remedy):
        yield episode


def merge(*logs: Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes of several logs in order. If task instance, seed and arm are equal, only the first is kept."""
    seen = set()
    for episode in chain(*logs):
        key = (task_key(episode.task), episode.seed, str(episode.provenance.get("arm")))
        if key not in seen:
            seen.add(key)
            yield episode


class EpisodeLog:
    """Append-only log that survives a kill. Only the line being written is lost, and reopening removes it.

    Use it as a context manager. Once `append` returns, the operating system has the line.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            drop_half_line(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"episodes {path}: {reason(error)}") from error

    def append(self, episode: Episode) -> None:
        """Write an episode.

        Raises:
            UserError: it contains something that JSON or UTF-8 cannot express, or the file cannot grow, for instance
                because the disk is full. The log is unchanged then.
        """
        try:
            line = f"{to_line(episode)}\n".encode()
        except (ValueError, TypeError) as error:
            failure = f"the episode of task {episode.task.id!r} cannot be written"
            raise UserError(f"episodes {self.path}: {failure}: {one_line(error)}") from error
        end = self._file.tell()
        with writing(f"episodes {self.path}"):
            try:
                while line:  # an unbuffered write may write only a part
                    line = line[self._file.write(line) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(end)
                raise

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, *_: object) -> None:
        with writing(f"episodes {self.path}"), self._file:
            os.fsync(self._file.fileno())


def drop_half_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed process left behind. The file need not exist."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        size = complete_size = file.seek(0, os.SEEK_END)
        while complete_size:  # backwards, block by block, until a line ends
            start = max(0, complete_size - BLOCK)
            file.seek(start)
            last_end = file.read(complete_size - start).rfind(b"\n")
            complete_size = start + last_end + 1
            if last_end >= 0:
                break
        if complete_size < size:
            file.truncate(complete_size)


def task_key(task: Task) -> str:
    """Return a key of a task instance that does not depend on its id: environment, stage and payload as one text."""
    return json.dumps([task.env, task.stage, task.payload], sort_keys=True, default=str)
