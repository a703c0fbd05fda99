"""The only place where a repository's files are opened: for reading, below the root, and never through a link.

A path is walked name by name: each folder is opened relative to the one before it, and the kernel is told to refuse a
link (`O_NOFOLLOW`). Whatever is swapped underneath in the meantime, no step can lead out of the root. A path is never
put together into one for the system to resolve, and nothing here starts a process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from reflectrl.types import UserError

Kind = Literal["folder", "file", "link", "special"]
_AT_ONCE = 1 << 20
"""Bytes of memory set aside for one reading, however large the limit."""


class Stamp(NamedTuple):
    """What tells one version of a file from another."""

    size: int
    """Bytes."""
    changed_ns: int
    executable: bool


class Sandbox:
    """A root folder.

    Args:
        root: any spelling of its path; links in it are followed, once, here.

    Raises:
        UserError: it does not exist, is not a folder, or may not be read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise UserError("a repository can be opened on POSIX systems only (Linux, macOS, WSL)")
        try:
            self.root = Path(root).resolve(strict=True)
            found = self.root.stat()
            if not stat.S_ISDIR(found.st_mode):
                raise UserError(f"{str(root)!r} is a file; name the folder of the repository")
            self._identity = found.st_dev, found.st_ino
            with self.folder(""):
                pass
        except FileNotFoundError:
            raise UserError(f"there is no folder {str(root)!r}{_nearest(root)}") from None
        except (OSError, RuntimeError, ValueError) as error:  # loops of links; a null character
            raise UserError(f"{str(root)!r} cannot be opened: {_short(error)}") from None

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A descriptor of a folder, open within the `with` block.

        Raises:
            OSError: it is not there, not a folder (or a link to one), on another device, or may not be read.
        """
        descriptor = os.open(self.root, _folder_flags())
        try:
            if self._device_and_inode(descriptor) != self._identity:
                raise OSError(errno.ESTALE, "the repository's folder was replaced")
            for name in path.split("/") if path else ():
                outer, descriptor = descriptor, os.open(name, _folder_flags(), dir_fd=descriptor)
                os.close(outer)
            if self._device_and_inode(descriptor)[0] != self._identity[0]:
                raise OSError(errno.EXDEV, "another file system")
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _device_and_inode(descriptor: int) -> tuple[int, int]:
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino

    def read(self, path: str, limit: int) -> tuple[bytes, Stamp]:
        """At most `limit` bytes of a regular file, and its stamp; OSError says why not."""
        folder, _, name = path.rpartition("/")
        with self.folder(folder) as descriptor:
            return read_in(descriptor, name, limit)

    def exists(self, path: str) -> bool:
        """Whether anything of that path is there, be it a link; OSError where that cannot be told."""
        folder, _, name = path.rpartition("/")
        try:
            with self.folder(folder) as descriptor:
                os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def entries(folder: int) -> list[tuple[str, Kind]]:
    """Names and kinds of what is in an open folder, sorted by name."""
    with os.scandir(folder) as scan:
        return sorted((entry.name, _kind(entry)) for entry in scan)


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"


def read_in(folder: int, name: str, limit: int) -> tuple[bytes, Stamp]:
    """As `Sandbox.read`, in an open folder. What is not a regular file is neither read nor waited for."""
    # Never through a link, never waiting for the other end of a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        before = _stamp(descriptor)
        pieces, missing = [], limit
        while missing > 0 and (piece := os.read(descriptor, min(missing, _AT_ONCE))):
            pieces.append(piece)
            missing -= len(piece)
        if _stamp(descriptor) != before:
            raise OSError(errno.ESTALE, "changed while it was read")
        return b"".join(pieces), before
    finally:
        os.close(descriptor)


def _stamp(descriptor: int) -> Stamp:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return Stamp(found.st_size, found.st_mtime_ns, bool(found.st_mode & stat.S_IXUSR))


def why(error: OSError) -> str:
    """A few words on why something could not be read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "it is not there any more"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission denied"
    if error.errno == errno.ELOOP:
        return "it is a link now"
    return _short(error)


def _short(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def _nearest(root: str | os.PathLike[str]) -> str:
    """The entry beside a misspelt last name that is spelt most like it."""
    import difflib

    path = Path(root)
    try:
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)  # noqa: PTH208
    except OSError:
        return ""
    return f" (did you mean {str(path.with_name(near[0]))!r}?)" if near else ""


def _folder_flags() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
