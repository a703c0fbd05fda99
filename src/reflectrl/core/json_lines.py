"""Readers of JSON that may come from a stranger: files, and lines of files.

Errors name the file and the line; a killed writer's last line may be skipped. Nesting, the length of a line and the
size of a file have limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from reflectrl.core.file_kinds import HEAD_BYTES, other_format
from reflectrl.core.plugins import reason
from reflectrl.core.regular_files import open_regular, read_regular
from reflectrl.core.types import UserError

T = TypeVar("T")
Reaction = Literal["refuse", "skip"]
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tabs and line feeds."""
LONGEST_LINE = 1 << 26
"""Largest number of bytes of a line."""
LARGEST_JSON = 1 << 26
"""Largest number of bytes of a file that holds one JSON value. In memory it can take thirty times as much."""


def parse_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON that may come from a stranger.

    Args:
        parse_constant: function for NaN and infinities, as for `json.loads`.

    Raises:
        ValueError: it is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def read_json(path: Path, most: int = LARGEST_JSON) -> Any:
    """Read a file that holds one JSON value.

    Raises:
        OSError: it cannot be read, has more than `most` bytes, or is no regular file.
        ValueError: it is not JSON, or is nested too deeply.
    """
    return parse_json(read_regular(path, most))


def parse_shown(text: str | bytes) -> Any:
    """Parse JSON whose texts are shown on pages and in figures.

    Half a character (a lone surrogate), which no file can hold, and control characters, which no font has, become
    U+FFFD.

    Raises:
        ValueError: it is not JSON, or is nested too deeply.
    """
    value = parse_json(text)
    escape = b"\\u" if isinstance(text, bytes) else "\\u"
    try:  # only an escape can spell such characters
        return _shown(value) if escape in text else value  # type: ignore[operator]
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    return value


def bounded_lines(file: IO[bytes], most: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield the lines of a file. Raises ValueError, with the number of the line, if a line is too long.

    Only a line feed ends a line. `str.splitlines` would also break at U+2028 inside a text.
    """
    for line_number in count(1):
        line = file.readline(most + 1)
        if len(line) > most:
            raise LongLineError(line_number, most)
        if not line:
            return
        yield line


class LongLineError(ValueError):
    """Error: a line is longer than is read."""

    def __init__(self, line_number: int, most: int) -> None:
        super().__init__(f"the line has more than {most:,} bytes")
        self.line_number = line_number


def read_json_lines(
    path: Path,
    parse: Callable[[str], T],
    fault: str = "",
    remedy: str = "",
    half_written: Reaction = "refuse",
    damaged: Reaction = "refuse",
    skip_blank: bool = False,
) -> Iterator[tuple[int, T]]:
    """Yield the number and the parsed content of each line.

    Args:
        parse: parser of a line. Its ValueError, TypeError or KeyError means that the line is damaged.
        fault: words for a damaged line, such as "no question", for messages.
        remedy: advice at the end of the message.
        half_written: reaction to a damaged last line without a line break, which a killed writer leaves.
        damaged: reaction to any other damaged line.
        skip_blank: skip blank lines, which people leave in files. In our own files they are damage.

    Raises:
        UserError: the file cannot be read, or a line is refused.
    """
    try:
        with open_regular(path) as file:
            for line_number, line in enumerate(bounded_lines(file), start=1):
                if skip_blank and not line.strip():
                    continue
                try:
                    content = parse(line.decode("utf-8").rstrip("\r\n"))
                except (ValueError, TypeError, KeyError) as error:
                    is_half = not line.endswith(b"\n")
                    if (half_written if is_half else damaged) == "skip":
                        continue
                    if line_number == 1 and (format_and_advice := other_format(line[:HEAD_BYTES])):
                        raise UserError(f"{path}: {format_and_advice}") from error
                    why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                    message = ": ".join(filter(None, ("half-written line" if is_half else fault, why)))
                    raise UserError(f"{path}:{line_number}: {message}{remedy and f'; {remedy}'}") from error
                yield line_number, content
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from error
    except LongLineError as error:
        raise UserError(f"{path}:{error.line_number}: {error}") from error
