"""The episode log: appended to line by line, read with every mistake named by file and line, merged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from reflectrl.episodes.schema import from_line, to_line
from reflectrl.plugins import one_line
from reflectrl.types import Episode, Task, UserError


def read_episodes(path: Path) -> Iterator[Episode]:
    """Episodes of a log, in order.

    Raises:
        UserError: the file cannot be read, or a line is corrupt (named by file and line number).
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield _read_line(path, number, line)
    except OSError as error:
        raise UserError(f"episodes {path}: {error.strerror}") from error


def _read_line(path: Path, number: int, line: bytes) -> Episode:
    try:
        return from_line(line.decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one
        if not line.endswith(b"\n"):
            raise UserError(f"{path}:{number}: half-written line (remove it to go on)") from error
        remedy = "mend or remove this line (a run's own log may be removed whole: the run writes it again)"
        raise UserError(f"{path}:{number}: corrupt episode: {error}; {remedy}") from error


def merge(*logs: Iterable[Episode]) -> Iterator[Episode]:
    """The episodes of several logs, in order; of those with the same instance, seed and arm only the first."""
    seen = set()
    for episode in chain(*logs):
        key = (task_key(episode.task), episode.seed, str(episode.provenance.get("arm")))
        if key not in seen:
            seen.add(key)
            yield episode


class EpisodeLog:
    """An append-only log that survives a kill: at most the line being written is lost, and it is dropped on reopening.

    Use as a context manager; every `append` is on the disk's side of the process once it returns.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            drop_half_line(path)
            self._file = path.open("ab")
        except OSError as error:
            raise UserError(f"episodes {path}: {error.strerror}") from error

    def append(self, episode: Episode) -> None:
        """Write an episode.

        Raises:
            UserError: it holds what JSON or UTF-8 has no word for; nothing is written then.
        """
        try:
            line = f"{to_line(episode)}\n".encode()
        except (ValueError, TypeError) as error:
            about = f"the episode of task {episode.task.id!r} cannot be written"
            raise UserError(f"episodes {self.path}: {about}: {one_line(error)}") from error
        self._file.write(line)
        self._file.flush()

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def drop_half_line(path: Path) -> None:
    """Cut off what a killed writer left after the last line break. A missing file is fine."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        if whole < file.tell():
            file.truncate(whole)


def task_key(task: Task) -> str:
    """What makes two tasks the same instance, whatever they are called: environment, stage and payload."""
    return json.dumps([task.env, task.stage, task.payload], sort_keys=True, default=str)
