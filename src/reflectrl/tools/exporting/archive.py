"""Release archives: `.tar.gz` files with a list of digests, which are the same bytes for the same files.

Everything lies in one folder of the archive, beside `SHA256SUMS`, which `sha256sum -c` can check. An archive from
elsewhere is read without trust: nothing in it decides where a file is written or how much is unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from reflectrl.core.archives import AT_ONCE, ForwardStream
from reflectrl.core.config.folders import no_link, writing
from reflectrl.core.plugins import reason
from reflectrl.core.regular_files import open_regular
from reflectrl.core.types import UserError

ENDING = ".tar.gz"
SUMS = "SHA256SUMS"
"""File of an archive with the SHA-256 of all others, in the format of `sha256sum`."""
MOST_BYTES = 1 << 30
"""Largest unpacked size of an archive, in bytes."""
MOST_FILES = 200_000
"""Largest number of files in an archive."""
"""Largest number of bytes to read in one call. tarfile reads a whole header at once, however long it says it is."""
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_DAMAGED = (tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError)
"""Errors of tarfile and gzip for damaged archives. A RuntimeError is too deep a chain of headers."""


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_archive(path: Path, root: str, files: Iterable[tuple[str, bytes]]) -> str:
    """Write files to an archive. Equal files give equal bytes (with the same version of zlib).

    Times, owners and permissions are fixed, and `files` is written in the order in which it comes.

    Args:
        path: archive to write; it ends in ".tar.gz". A file of this name is replaced once the new one is complete.
        root: name of the folder that holds everything in the archive.
        files: pairs (path below `root`, content), sorted by path.

    Returns:
        The SHA-256 of the list of digests. It identifies the content, whatever zlib made of it.

    Raises:
        UserError: the archive cannot be written.
    """
    require_archive_name(path)
    temporary = path.with_name(path.name + ".writing")
    digests: dict[str, str] = {}
    with writing(path, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=no_link) as file:
            # An empty name and the time 0 keep the archive's own name and the clock out of its first bytes.
            with (
                gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as zipped,
                tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for name, content in files:
                    digests[name] = hashlib.sha256(content).hexdigest()
                    _add(tar, f"{root}/{name}", content)
                listed = sums_of(digests).encode("utf-8")
                _add(tar, f"{root}/{SUMS}", listed)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return hashlib.sha256(listed).hexdigest()


def require_archive_name(path: Path) -> None:
    """Raise UserError unless a path can be an archive's: it ends in ".tar.gz" and is not a folder's."""
    if not path.name.endswith(ENDING) or path.is_dir():
        raise UserError(f"{path} cannot be written: name a file that ends in {ENDING}")


def sums_of(digests: Mapping[str, str]) -> str:
    """Return the text of a list of digests: a line "digest  path" per file, sorted by path."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # the time is 0, owner and group are 0 without names
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_archive(path: Path, folder: Path, is_expected: Callable[[str], bool], most_bytes: int = MOST_BYTES) -> str:
    """Unpack an archive into an empty folder, without its outermost folder, and check all digests.

    After an error, `folder` may hold a part of the files; remove it.

    Args:
        is_expected: function that tells whether such an archive may hold a file of this path.
        most_bytes: largest unpacked size.

    Returns:
        The SHA-256 of the list of digests, as from `write_archive`.

    Raises:
        UserError: the archive is damaged or too large; it holds a link, a device, a path that leads outside or that is
            not expected; or a file's digest is not the listed one.
    """
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unzipped:
            stream = ForwardStream(unzipped, most_bytes)
            digests = _unpack(stream, folder, is_expected)
            stream.skip_to_end()  # gzip compares its checksum at the end
        listed = (folder / SUMS).read_bytes() if digests.pop(SUMS, "") else b""
        _compare(listed.decode("utf-8"), digests)
    except _DAMAGED as error:
        raise UserError(f"{path} cannot be unpacked: {reason(error)}") from error
    return hashlib.sha256(listed).hexdigest()


def _unpack(stream: ForwardStream, folder: Path, is_expected: Callable[[str], bool]) -> dict[str, str]:
    """Write the members into the folder; return path → SHA-256 of what was written."""
    digests: dict[str, str] = {}
    root = ""
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tar:
            # A sparse file is "regular", too, and a few bytes of it can stand for any number of zeros.
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
                raise ValueError(f"{member.name!r} is not a plain file")
            parts = PurePosixPath(member.name).parts
            root = root or parts[0]
            inner = "/".join(parts[1:])
            is_plain = member.name == f"{root}/{inner}" and member.name.isprintable() and "\\" not in member.name
            if not (is_plain and inner) or ".." in parts or root in ("/", ".."):
                raise ValueError(f"{member.name!r} does not lie in the archive's folder")
            if inner != SUMS and not is_expected(inner):
                raise ValueError(f"{member.name!r} does not belong in such an archive")
            if len(digests) == MOST_FILES:
                raise ValueError(f"it holds more than {MOST_FILES:,} files")
            digests[inner] = _write_member(tar, member, folder / inner)
    return digests


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> str:
    source = tar.extractfile(member)
    if source is None:
        raise ValueError(f"{member.name!r} is not a plain file")
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source, target.open("xb") as file:  # "x": a second file of the same name is refused
        while content := source.read(AT_ONCE):
            digest.update(content)
            file.write(content)
    return digest.hexdigest()


def _compare(listed: str, digests: Mapping[str, str]) -> None:
    """Raise ValueError unless the files are exactly the listed ones."""
    expected: dict[str, str] = {}
    for line in listed.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{SUMS} is damaged")
        expected[match[2]] = match[1]
    if not expected:
        raise ValueError(f"it has no {SUMS}")
    for name in sorted({*expected, *digests}):
        if name not in digests:
            raise ValueError(f"{name!r} is missing")
        if expected.get(name) != digests[name]:
            raise ValueError(f"{name!r} has another SHA-256 than {SUMS} says")
