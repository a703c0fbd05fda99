"""Writing samples: files that are complete, or as they were before."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from reflectrl.config.folders import no_link
from reflectrl.types import UserError
from reflectrl.wings.text.samples.sample import Sample


class LineFile:
    """A file that is written line by line beside its place, packed if its name ends in .gz, and put there by `keep`.

    Use as a context manager; without `keep`, what was written is dropped.

    Raises:
        UserError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0
        self._part = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._part, "wb", opener=no_link)  # noqa: SIM115  (closed by `keep` or on leaving)
        except OSError as error:
            raise self._failed(error) from error
        packed = path.suffix == ".gz"
        self._lines = cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)) if packed else self._file

    def write(self, line: str) -> None:
        """Add a line, to which the line break is added."""
        try:
            self._lines.write(line.encode("utf-8") + b"\n")
        except OSError as error:
            raise self._failed(error) from error
        self.count += 1

    def keep(self) -> None:
        """Put the file in its place."""
        try:
            if self._lines is not self._file:
                self._lines.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> UserError:
        return UserError(f"{self.path} cannot be written: {error.strerror or error}")

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink(missing_ok=True)


def write_samples(path: Path, samples: Iterable[Sample]) -> int:
    """Write samples in our own form, one JSON line each, and say how many.

    Raises:
        UserError: the file cannot be written, or a number is not finite.
    """
    return write_lines(path, map(to_line, samples))


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, and say how many.

    Raises:
        UserError: it cannot be written.
    """
    with LineFile(path) as file:
        for line in lines:
            file.write(line)
        file.keep()
    return file.count


def to_line(sample: Sample) -> str:
    """A sample as one JSON line without the line break; what is empty or unknown is left out, a NaN reward too."""
    row: dict[str, Any] = {key: value for key, value in vars(sample).items() if value is not None and value != {}}
    if math.isnan(sample.reward):
        del row["reward"]
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise UserError(f"sample {sample.id!r} has a number that is not finite") from error
