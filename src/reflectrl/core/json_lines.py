"""Reader of files of JSON lines. Errors name the file and the line; a killed writer's last line may be skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError

T = TypeVar("T")
Reaction = Literal["refuse", "skip"]


def parse_json(line: str) -> Any:
    """Parse a line of JSON. Raises ValueError, also for values that are nested too deeply."""
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


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
        with path.open("rb") as file:
            # Not `splitlines`, which would also break at U+2028 inside a text.
            for line_number, line in enumerate(file, start=1):
                if skip_blank and not line.strip():
                    continue
                try:
                    content = parse(line.decode("utf-8").rstrip("\r\n"))
                except (ValueError, TypeError, KeyError) as error:
                    is_half = not line.endswith(b"\n")
                    if (half_written if is_half else damaged) == "skip":
                        continue
                    why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
                    message = ": ".join(filter(None, ("half-written line" if is_half else fault, why)))
                    raise UserError(f"{path}:{line_number}: {message}{remedy and f'; {remedy}'}") from error
                yield line_number, content
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from error
