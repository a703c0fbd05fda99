"""Rows of data files, one at a time, from JSON lines or lists, with checks by which bad rows are refused or skipped."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from reflectrl.core.file_kinds import HEAD_BYTES, other_format
from reflectrl.core.json_lines import LongLineError, bounded_lines, parse_json
from reflectrl.core.plugins import reason
from reflectrl.core.regular_files import open_regular
from reflectrl.core.types import UserError
from reflectrl.wings.text.samples.sample import Skipped

Row = Mapping[str, Any]

CHUNK = 1 << 20
"""Number of bytes or characters of a JSON list that are read at a time."""
LARGEST = 1 << 26
"""Largest number of characters in an element of a JSON list."""
_GAP = re.compile(r"[\s,]*")
"""Separator between two elements of a JSON list."""


class BadRowError(ValueError):
    """Error in a row, with a reason, by which bad rows are counted, and a detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class LeftOutError(BadRowError):
    """A row that is left out and counted, but needs no repair. Published data sets contain such rows."""


class EmptyTextError(BadRowError):
    """A row with a text that is empty or blank. Published data sets contain some, so `data FAMILY` leaves them out."""


class Gate:
    """Policy for bad rows: with `skip_bad`, they are counted by reason; otherwise, the first bad row is an error.

    Attributes:
        skipped: bad rows that were skipped, by reason.
        left_out: rows that were left out without being wrong (`LeftOutError`), by reason.
        notes: unusual rows that were read anyway, by note.
    """

    def __init__(self, skip_bad: bool = False, advice: str = "") -> None:
        self.skip_bad, self.advice = skip_bad, advice
        self.skipped: dict[str, Skipped] = {}
        self.left_out: dict[str, Skipped] = {}
        self.notes: dict[str, Skipped] = {}

    def refuse(self, location: str, error: BadRowError) -> None:
        """Count a bad row; `location` is "file:line".

        Raises:
            UserError: the row is bad, and bad rows are not skipped.
        """
        left_out = isinstance(error, LeftOutError)
        if not (left_out or self.skip_bad):
            raise UserError(f"{location}: {error}{self.advice}") from error
        counted = self.left_out if left_out else self.skipped
        counted.setdefault(error.reason, Skipped()).add(location)

    def note(self, location: str, words: str) -> None:
        """Count an unusual row that is read anyway; `words` describe it."""
        self.notes.setdefault(words, Skipped()).add(location)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed if its name ends in .gz.

    Raises:
        UserError: the file cannot be read, or is damaged.
    """
    try:
        # A pipe that the user has named is waited for; `files_of` refuses one in a folder.
        with path.open("rb") if path.is_fifo() else open_regular(path) as packed:
            if path.suffix != ".gz":
                yield packed
                return
            with gzip.GzipFile(fileobj=packed) as file:
                yield cast(IO[bytes], file)
    except LongLineError as error:
        raise UserError(f"{path}:{error.line_number}: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: {reason(error)}") from error


def records(path: Path, lists: bool = True) -> Iterator[tuple[int, str, Any]]:
    """Yield the records of a file: its non-blank lines as bytes, or the elements of a JSON list.

    Args:
        lists: read a file that begins with "[" as one JSON list.

    Returns:
        The number of each record (its line, or its position in the list, from 1), its place ("file:line" or
        "file:line, element N"), and the record, which `parsed` turns into a row.

    Raises:
        UserError: the file cannot be read, or a JSON list is broken, so that its rest is unreadable.
    """
    with opened(path) as file:
        # Peek instead of seeking back, because a pipe cannot seek.
        head: bytes = cast(Any, file).peek(CHUNK)
        if format_and_advice := other_format(head[:HEAD_BYTES], is_table=not lists):
            raise UserError(f"{path}: {format_and_advice}")
        if lists and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            for count, (line_number, value) in enumerate(_elements(path, file), start=1):
                yield count, f"{path}:{line_number}, element {count}", value
            return
        for line_number, line in enumerate(bounded_lines(file), start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if line_number == 1 else line
            if line.strip():
                yield line_number, f"{path}:{line_number}", line


def _elements(path: Path, file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield (first line, element) for the elements of a JSON list, reading the file in chunks."""
    stream = io.TextIOWrapper(file, "utf-8-sig")
    decoder, count, line = json.JSONDecoder(), 1, 1
    try:
        text = ""
        while "[" not in text:  # `records` has seen one
            text += stream.read(CHUNK)
        offset = text.index("[") + 1
        line += text.count("\n", 0, offset)
        while True:
            gap = _GAP.match(text, offset)
            start = gap.end() if gap else offset
            line += text.count("\n", offset, start)
            if text.startswith("]", start):
                break
            try:
                value, offset = decoder.raw_decode(text, start)
            except json.JSONDecodeError as error:  # the element may go on in the next chunk
                chunk = stream.read(len(text) + CHUNK) if len(text) < LARGEST else ""
                if not chunk:
                    location = f"{path}:{line}, element {count}"
                    raise UserError(f"{location}: broken JSON begins here: {error.msg}") from error
                text, offset = text[start:] + chunk, 0
                continue
            yield line, value
            line += text.count("\n", start, offset)
            count += 1
        trailing = text[start + 1 :]
        while not trailing.strip():
            line += trailing.count("\n")
            trailing = stream.read(CHUNK)
            if not trailing:
                return
        line += trailing.count("\n", 0, len(trailing) - len(trailing.lstrip()))
        raise UserError(f"{path}:{line}: broken JSON: the list has ended, and the file goes on: {trailing.strip():.40}")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: broken JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}:{line}, element {count}: broken JSON: too deeply nested") from error
    finally:
        stream.detach()


def parsed(record: Any) -> dict[str, Any]:
    """Return the JSON object in a line (bytes) or list element; BadRowError if it is not an object."""
    if isinstance(record, bytes):
        try:
            record = parse_json(record)
        except ValueError as error:  # UnicodeDecodeError is one
            raise BadRowError("broken JSON", str(error)) from error
    if not isinstance(record, dict):
        raise BadRowError("not a JSON object", f"{record!r:.60}")
    return record


def text(row: Row, key: str) -> str:
    """Return the text under a key; BadRowError if it is missing or blank."""
    value = need(row, key)
    if not isinstance(value, str):
        raise BadRowError(f"{key} must be text", f"not {value!r:.60}")
    return checked(value, key)


def checked(value: str, name: str) -> str:
    """Return the text; EmptyTextError if it is blank, BadRowError if it cannot be encoded as UTF-8."""
    if not value.strip():
        raise EmptyTextError(f"empty {name}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRowError(f"{name} is not Unicode", str(error)) from error
    return value


def number(row: Row, key: str, name: str = "") -> float:
    """Return the number under a key; BadRowError if it is missing or not finite."""
    return finite(need(row, key, name), name or key)


def finite(value: Any, name: str) -> float:
    """Return the value as a float; BadRowError if it is not a finite number."""
    if value is None:
        raise BadRowError(f"missing {name}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRowError(f"{name} must be a number", f"not {value!r:.60}")
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond the range of floats
        pass
    raise BadRowError(f"{name} is not finite", f"{value!r:.60}")


def to_float(word: str, name: str) -> float:
    """Parse a number; BadRowError if the word is not one."""
    try:
        return float(word)
    except ValueError:
        raise BadRowError(f"{name} must be a number", f"not {word!r:.40}") from None


def items(row: Row, key: str) -> list[Any]:
    """Return the list under a key; BadRowError if there is none."""
    value = need(row, key)
    if not isinstance(value, list):
        raise BadRowError(f"{key} must be a list", f"not {value!r:.60}")
    return value


def mapping(row: Row, key: str) -> dict[str, Any]:
    """Return the object under a key; {} if the key is missing."""
    value = row.get(key)
    if value is not None and not isinstance(value, dict):
        raise BadRowError(f"{key} must be an object", f"not {value!r:.60}")
    return value or {}


def need(row: Row, key: str, name: str = "") -> Any:
    """Return the value under a key; BadRowError if it is missing."""
    if row.get(key) is None:
        raise BadRowError(f"missing {name or key}")
    return row[key]


def clean(value: Any) -> Any:
    """Return a JSON value that can be written again: non-finite numbers become None, lone surrogates become "?"."""
    try:
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
    except RecursionError as error:
        raise BadRowError("broken JSON", "too deeply nested") from error
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return None if isinstance(value, float) and not math.isfinite(value) else value
