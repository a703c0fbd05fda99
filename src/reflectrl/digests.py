"""Whether files are still what was written: digests of the files in a folder, and checksums of lines.

A flipped bit in saved weights, or in a reward of a log, is loaded without complaint and silently changes results. So
files are checked when they are read. (This protects against accidents, not against somebody who changes the digests as
well.)
"""

from __future__ import annotations

import hashlib
import json
import zlib
from functools import lru_cache
from pathlib import Path

from reflectrl.types import UserError

DIGESTS = "digests.json"
"""The file beside others that holds their digests."""

CHECKSUM = "crc32"
SEAL = f',"{CHECKSUM}":"' + '{:08x}"}}'
"""How a sealed line ends."""


# ---- folders ---------------------------------------------------------------------------------------------------------


def write_digests(folder: Path) -> None:
    """Write `digests.json` into a folder, and into each folder below it: the SHA-256 of every file beside it."""
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        found = {path.name: _sha256(path) for path in sorted(place.iterdir()) if path.is_file()}
        if found:
            (place / DIGESTS).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with the first damaged file of a folder, in words that begin with its path; None if all is well.

    A folder without digests counts as undamaged, since nothing is known about it. Files that were added later do not
    matter. Each file is read once per process, unless it is written again.

    Raises:
        OSError: a file cannot be read.
    """
    path = folder / DIGESTS
    if not path.is_file():
        return None
    try:
        noted = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        noted = {}
    if not noted:
        return f"{path} is damaged"
    for name, digest in noted.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        now = file.stat()
        if _known(file.resolve(), now.st_mtime_ns, now.st_size) != digest:
            return f"{file} is not what was written there"
    return None


def require_undamaged(folder: Path) -> None:
    """Raise UserError if a file of a folder is damaged; a folder without digests is taken as it is.

    Raises:
        UserError: names the file and what to do.
    """
    if problem := damage(folder):
        raise UserError(
            f"{problem}; remove {folder}, and the command that made it makes it anew"
            f" (or only its {DIGESTS}, if the file was changed on purpose)"
        )


@lru_cache(maxsize=4096)
def _known(path: Path, modified: int, size: int) -> str:
    """The digest of a file that was last written at that time."""
    return _sha256(path)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file of the user's; UserError if it cannot be read."""
    try:
        now = path.stat()
        return _known(path.resolve(), now.st_mtime_ns, now.st_size)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- lines -----------------------------------------------------------------------------------------------------------


def seal(line: str) -> str:
    """A JSON object on one line, with the CRC-32 of its text as a last key, "crc32"."""
    return line[:-1] + SEAL.format(zlib.crc32(line.encode("utf-8")))


def unseal(line: str) -> str:
    """Remove the seal from a line; a line without one is returned unchanged.

    Raises:
        ValueError: the line has changed since it was sealed.
    """
    start = len(line) - len(SEAL.format(0))
    text = f"{line[:start]}}}"
    whole = seal(text)
    if line == whole:
        return text
    if line[start:].startswith(SEAL.partition("{")[0]) or line[-11:] == whole[-11:]:  # its key is there, or its number
        raise ValueError("the line is not what was written there (its checksum differs)")
    return line
