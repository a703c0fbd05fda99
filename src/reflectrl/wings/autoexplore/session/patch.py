"""Patches in git's format, file by file."""

from __future__ import annotations

import base64
import difflib
import zlib
from collections.abc import Iterator, Sequence
from hashlib import sha1
from typing import NamedTuple

CONTEXT = 3
"""Number of unchanged lines around a change."""
MOST_EXACT = 5000
"""Largest number of lines for which the shortest difference is searched."""
NO_NEWLINE = "\\ No newline at end of file\n"
ROW = 52
"""Largest number of bytes per line of a binary patch."""
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Version(NamedTuple):
    """Content of a file, and whether it may be executed."""

    data: bytes
    executable: bool = False


def patch_of(path: str, before: Version | None, after: Version | None) -> str:
    """Return the patch of a file.

    Args:
        before, after: versions of the file; None if there is no such file.
    """
    old, new = quoted(f"a/{path}"), quoted(f"b/{path}")
    lines = [f"diff --git {old} {new}\n"]
    if before is None and after is not None:
        lines.append(f"new file mode {mode(after)}\n")
    if after is None and before is not None:
        lines.append(f"deleted file mode {mode(before)}\n")
    data_before, data_after = before.data if before else b"", after.data if after else b""
    texts = as_text(data_before), as_text(data_after)
    if None in texts:
        lines.append(f"index {blob(before)}..{blob(after)}\n")
        lines += ["GIT binary patch\n", *binary(data_after), "\n", *binary(data_before), "\n"]
        return "".join(lines)
    lines.append(f"index {blob(before)[:10]}..{blob(after)[:10]}\n")
    hunks = list(_hunks(*(_lines(text or "") for text in texts)))
    if hunks:
        # A tab ends a name with spaces, as in git's own patches.
        lines.append(f"--- {_ended(old) if before else '/dev/null'}\n")
        lines.append(f"+++ {_ended(new) if after else '/dev/null'}\n")
    return "".join([*lines, *hunks])


def mode(version: Version) -> str:
    """Return git's mode of a regular file."""
    return "100755" if version.executable else "100644"


def blob(version: Version | None) -> str:
    """Return git's name of a file's content; zeros if there is no file."""
    if version is None:
        return "0" * 40
    return sha1(b"blob %d\0" % len(version.data) + version.data, usedforsecurity=False).hexdigest()


def as_text(data: bytes) -> str | None:
    """Return the text of a file; None if it is binary for git, or not UTF-8, so that a text patch could not hold it."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def quoted(path: str) -> str:
    """Return a path as git writes it in patches: quoted, with octal escapes, unless it is plain ASCII."""
    data = path.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return path
    escaped = []
    for byte in data:
        if byte in b'"\\':
            escaped.append(f"\\{chr(byte)}")
        else:
            escaped.append(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
    return f'"{"".join(escaped)}"'


def _ended(name: str) -> str:
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _lines(text: str) -> list[str]:
    """Split a text at line feeds only, since patches know no other line break."""
    parts = text.split("\n")
    return [f"{line}\n" for line in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    # The exact search takes quadratic time in the number of lines; the other one ignores frequent lines.
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > MOST_EXACT)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        (_, start, _, begin, _), (_, _, end, _, stop) = group[0], group[-1]
        yield f"@@ -{_range(start, end)} +{_range(begin, stop)} @@\n"
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from _marked(" ", before[old_start:old_end])
            else:
                yield from _marked("-", before[old_start:old_end])
                yield from _marked("+", after[new_start:new_end])


def _range(start: int, end: int) -> str:
    """Return the lines of a hunk as `first,count`. The first line of an empty range is the one before it."""
    return f"{start + 1 if end > start else start},{end - start}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{NO_NEWLINE}"


def binary(data: bytes) -> Iterator[str]:
    """Yield the lines of a literal binary patch: the length of each row as a letter, then the row in base 85."""
    yield f"literal {len(data)}\n"
    packed = zlib.compress(data)
    for start in range(0, len(packed), ROW):
        row = packed[start : start + ROW]
        padded = row + b"\0" * (-len(row) % 4)
        yield f"{ALPHABET[9 + len(row)] if len(row) else ''}{base64.b85encode(padded).decode()}\n"
