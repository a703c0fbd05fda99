"""Detection of damaged files: digests of the files in a folder, and checksums of lines.

A flipped bit in saved weights, or in a reward of a log, is loaded without complaint and silently changes results. So
files are checked when they are read. (This protects against accidents, not against an attacker who changes the digests
as well.)
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import json
import os
import zlib
from functools import lru_cache
from pathlib import Path

from reflectrl.core.json_lines import read_json
from reflectrl.core.regular_files import open_regular
from reflectrl.core.types import UserError

DIGESTS = "digests.json"
"""Name of the file that holds the digests of the files beside it."""
WORTH_LINKING = 1 << 20
"""Size in bytes from which a file is worth a hard link."""

CHECKSUM = "crc32"
SEAL = f',"{CHECKSUM}":"' + '{:08x}"}}'
"""Format of the end of a sealed line."""


# ---- folders ---------------------------------------------------------------------------------------------------------


def write_digests(folder: Path) -> None:
    """Write `digests.json`, the SHA-256 of every file beside it, into a folder and each folder below."""
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        digests = {path.name: _sha256(path) for path in sorted(directory.iterdir()) if path.is_file()}
        if digests:
            (directory / DIGESTS).write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


def link_equal_files(folder: Path, other: Path) -> None:
    """Replace large files of a folder by hard links to equal files of the same name in another folder.

    So the checkpoints of a run store frozen weights once. Both folders need digests, and the files are compared byte by
    byte as well, since a file of the other folder may be damaged. Nothing in a run changes such files in place. If the
    file system has no hard links, nothing is done.
    """
    try:
        own, others = _digests_in(folder), _digests_in(other)
        for name in sorted(own):
            same_digest = others.get(name) == own[name]
            if same_digest and (folder / name).stat().st_size >= WORTH_LINKING:
                _link_if_equal(folder / name, other / name)
    except OSError:  # there are no digests, or another process has just replaced the folder
        return


def _link_if_equal(file: Path, other: Path) -> None:
    if other.samefile(file) or not filecmp.cmp(file, other, shallow=False):
        return
    link = file.with_name(f"{file.name}.link")
    try:
        link.hardlink_to(other)
        link.replace(file)
    finally:
        link.unlink(missing_ok=True)


def _digests_in(folder: Path) -> dict[str, str]:
    """Return the digests of a folder; none if their file is damaged. Raise OSError if it cannot be read.

    A name that leads out of the folder is damage, too: it may be a device, whose end never comes.
    """
    try:
        digests = dict(read_json(folder / DIGESTS))
    except (ValueError, TypeError):
        return {}
    inside = all(Path(name).name == name and name not in ("", "..") for name in digests)
    return digests if inside else {}


def damage(folder: Path) -> str | None:
    """Describe the first damaged file of a folder, beginning with its path. Return None if all files are undamaged.

    A folder without digests counts as undamaged, since nothing is known about it. Files that were added later are
    ignored. Each file is read once per process, unless it is written again.

    Raises:
        OSError: a file cannot be read.
    """
    path = folder / DIGESTS
    if not os.path.lexists(path):
        return None
    try:
        expected = _digests_in(folder)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if not expected:
        return f"{path} is damaged"
    for name, digest in expected.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        status = file.stat()
        try:
            present_digest = _cached_sha256(file.resolve(), status.st_mtime_ns, status.st_size)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return f"{file} is not a regular file"
        if present_digest != digest:
            return f"{file} has changed since it was written"
    return None


def require_undamaged(folder: Path) -> None:
    """Raise UserError if a file of a folder is damaged. A folder without digests counts as undamaged.

    Raises:
        UserError: names the file and what to do.
    """
    if problem := damage(folder):
        raise UserError(
            f"{problem}; remove {folder}, then repeat the command that made it"
            f" (or remove only its {DIGESTS}, if you changed the file on purpose)"
        )


@lru_cache(maxsize=4096)
def _cached_sha256(path: Path, modified: int, size: int) -> str:
    """Return the digest of a file. The other arguments make the cache notice changes of the file."""
    return _sha256(path)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a user's file. Raise UserError if it cannot be read."""
    try:
        status = path.stat()
        return _cached_sha256(path.resolve(), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- lines -----------------------------------------------------------------------------------------------------------


def seal(line: str) -> str:
    """Add the CRC-32 of a JSON object's line as its last key, "crc32"."""
    return line[:-1] + SEAL.format(zlib.crc32(line.encode("utf-8")))


def unseal(line: str) -> str:
    """Remove the checksum from a line. A line without a checksum is returned unchanged.

    Raises:
        ValueError: the line has changed since it was sealed.
    """
    start = len(line) - len(SEAL.format(0))
    text = f"{line[:start]}}}"
    sealed = seal(text)
    if line == sealed:
        return text
    # It has the key of a checksum, or the right checksum after a damaged key. So it was sealed, and has changed since.
    if line[start:].startswith(SEAL.partition("{")[0]) or line[-11:] == sealed[-11:]:
        raise ValueError("the line has changed since it was written (its checksum differs)")
    return line
