"""Arrays on disk: a file that is verified by its digest, mapped into memory, and written at once or not at all."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = b"reflectrl-locate\n"
_DIGEST = hashlib.sha256().digest_size
_ALIGNED = 16
_MOST_HEADER = 1 << 20
_KIND = re.compile("[<|][iuf][1248]")
"""Types of arrays: numbers only."""


class DamagedError(Exception):
    """Error: a file of the cache is missing, damaged, or another user's. The caller rebuilds it."""


def digest(data: bytes | memoryview) -> bytes:
    """Return the SHA-256 digest of contents, which many processors compute in hardware."""
    return hashlib.sha256(data).digest()


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return named arrays as bytes: magic, digest of the rest, length of the header, header, arrays."""
    about, parts, offset = {}, list[bytes](), 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        about[name] = (array.dtype.str, len(array), offset)
        padding = -len(data) % _ALIGNED
        parts += [data, bytes(padding)]
        offset += len(data) + padding
    header = json.dumps(about).encode()
    header += b" " * (-(len(MAGIC) + _DIGEST + 8 + len(header)) % _ALIGNED)
    body = b"".join([len(header).to_bytes(8, "big"), header, *parts])
    return MAGIC + digest(body) + body


def unpack(data: memoryview) -> dict[str, NDArray[np.generic]]:
    """Return the arrays, without a copy.

    Raises:
        DamagedError: `pack` did not make these bytes.
    """
    start = len(MAGIC) + _DIGEST
    if data[: len(MAGIC)] != MAGIC or digest(data[start:]) != bytes(data[len(MAGIC) : start]):
        raise DamagedError("the digest differs")
    size = int.from_bytes(data[start : start + 8], "big")
    if size > _MOST_HEADER:
        raise DamagedError("no header")
    begin = start + 8 + size
    about = json.loads(bytes(data[start + 8 : begin]))
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, (kind, length, offset) in about.items():
        if not _KIND.fullmatch(kind) or min(length, offset) < 0:
            raise DamagedError(f"{name} is no array of numbers")
        arrays[name] = np.frombuffer(data, np.dtype(kind), length, begin + offset)
    return arrays


def read(path: Path) -> dict[str, NDArray[np.generic]]:
    """Map a file into memory, and return its arrays.

    Raises:
        DamagedError: there is no such file, it is a link, belongs to another user, can be written by others, or is
            damaged.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise DamagedError("it is not this user's own file")
            return unpack(memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)))
        finally:
            os.close(descriptor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(str(error)) from error


def write(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it, so that no reader sees a part of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
