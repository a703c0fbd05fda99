"""Bounded reading of archives: headers and contents of a few bytes can claim any size."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from reflectrl.core.regular_files import open_regular

AT_ONCE = 1 << 20
"""Largest number of bytes that are read at a time. A longer read means that a header claims too much."""


class ForwardStream(io.RawIOBase):
    """Decompressed bytes of an archive that are read once, from the beginning to the end.

    Args:
        source: decompressed bytes.
        most: largest number of bytes. A few compressed ones can stand for any number.
    """

    def __init__(self, source: IO[bytes] | gzip.GzipFile, most: int) -> None:
        self._source, self._most, self._position = source, most, 0

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes. Raises ValueError if that is far too much, or if the limit is exceeded."""
        if not 0 <= size <= AT_ONCE:
            raise ValueError("a header is too long")
        data = self._source.read(size)
        self._position += len(data)
        if self._position > self._most:
            raise ValueError(f"it would unpack to more than {self._most:,} bytes")
        return data

    def seekable(self) -> bool:
        """Return True: tarfile asks before it skips what is left of a file."""
        return True

    def tell(self) -> int:
        """Return the number of bytes that have been read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to a later position. Raises ValueError for an earlier one, to which only a damaged header leads."""
        if whence != io.SEEK_SET or offset < self._position:
            raise ValueError("a header is damaged")
        while self._position < offset and self.read(min(offset - self._position, AT_ONCE)):
            pass
        return self._position

    def skip_to_end(self) -> None:
        """Read the rest."""
        while self.read(AT_ONCE):
            pass


@contextmanager
def opened_tar(path: Path, most: int) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, compressed or not, whose members are read in their order, once.

    Args:
        most: largest number of bytes, decompressed.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: a header is too long, or the archive is too large; while members are read, too.
        tarfile.TarError, EOFError, lzma.LZMAError, zlib.error: it is damaged, or no archive.
    """
    with open_regular(path) as file:
        head = file.read(8)
        file.seek(0)
        source = _decompressed(file, head)
        with tarfile.open(fileobj=ForwardStream(source, most), mode="r:") as archive:
            yield archive


def _decompressed(file: IO[bytes], head: bytes) -> IO[bytes]:
    """Return the decompressed contents of a file, by its first bytes; the file itself if it is not compressed."""
    if head.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(file)
    return bz2.BZ2File(file) if head.startswith(b"BZh") else file


def content_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Return the content of a regular member, read in pieces. Check its size before."""
    file = archive.extractfile(member)
    assert file is not None  # it is a regular file
    pieces: list[bytes] = []
    while data := file.read(AT_ONCE):
        pieces.append(data)
    return b"".join(pieces)
