"""Sandbox that opens a repository's files: for reading only, below the root, and never through a link.

No other module opens them. A path is walked name by name: each folder is opened relative to its parent, and the kernel
refuses links (`O_NOFOLLOW`). So no step can lead out of the root, even if files are swapped meanwhile. The system never
resolves a path below the root, and nothing here starts a process.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from reflectrl.core.types import UserError

Kind = Literal["folder", "file", "link", "special"]
_AT_ONCE = 1 << 20
_AT_LEAST = 1 << 10
"""Largest and smallest number of bytes for a single call of `os.read`."""

SETTLED_NS = 2_000_000_000
"""Age at which a folder's time of change can be trusted. Some file systems keep times to two seconds."""


class Stamp(NamedTuple):
    """Properties that distinguish the versions of a file."""

    size: int
    """Size in bytes."""
    changed_ns: int
    executable: bool
    status_ns: int = 0
    """Time of the inode's last change. A program that sets the time of change back cannot set this one."""
    inode: int = 0


class Sandbox:
    """Sandbox around a root folder.

    Args:
        root: path of the folder. Links in it are resolved once, here.
        suggests: name the folder beside it that is most like a missing one. An assistant must not read such names.

    Attributes:
        root: resolved path of the folder.
        identity: its device and inode.

    Raises:
        UserError: the path does not exist, is not a folder, or cannot be read.
    """

    def __init__(self, root: str | os.PathLike[str], suggests: bool = True) -> None:
        if os.open not in os.supports_dir_fd:
            raise UserError("a repository can be opened on POSIX systems only (Linux, macOS, WSL)")
        try:
            self.root = Path(root).resolve(strict=True)
            status = self.root.stat()
            if not stat.S_ISDIR(status.st_mode):
                raise UserError(f"{str(root)!r} is a file; name the folder of the repository")
            self.identity = status.st_dev, status.st_ino
            with self.folder(""):
                pass
        except FileNotFoundError:
            raise UserError(f"there is no folder {str(root)!r}{_nearest(root) if suggests else ''}") from None
        except (OSError, RuntimeError, ValueError) as error:  # loops of links; a null character
            raise UserError(f"{str(root)!r} cannot be opened: {_short(error)}") from None

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """Open a folder as a file descriptor within the `with` block.

        Raises:
            OSError: the folder does not exist, is not a folder, is a link, is on another device, or cannot be read.
        """
        descriptor = os.open(self.root, _folder_flags())
        try:
            # The path of the root is resolved by the system each time, so it may lead elsewhere by now.
            if self._device_and_inode(descriptor) != self.identity:
                raise OSError(errno.ESTALE, "the repository's folder was replaced")
            for name in path.split("/") if path else ():
                outer, descriptor = descriptor, os.open(name, _folder_flags(), dir_fd=descriptor)
                os.close(outer)
            self._require_same_device(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def subfolder(self, folder: int, name: str) -> Iterator[int]:
        """Open a folder in an open one, within the `with` block. A walk needs one system call for it, at any depth.

        Raises:
            OSError: as for `folder`.
        """
        descriptor = os.open(name, _folder_flags(), dir_fd=folder)
        try:
            self._require_same_device(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _require_same_device(self, descriptor: int) -> None:
        if self._device_and_inode(descriptor)[0] != self.identity[0]:
            raise OSError(errno.EXDEV, "another file system")

    @staticmethod
    def _device_and_inode(descriptor: int) -> tuple[int, int]:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def read(self, path: str, limit: int) -> tuple[bytes, Stamp]:
        """Read at most `limit` bytes of a regular file, and its stamp; raise OSError if that fails."""
        folder, _, name = path.rpartition("/")
        with self.folder(folder) as descriptor:
            return read_in(descriptor, name, limit)

    def listed(self, path: str) -> list[tuple[str, Kind]]:
        """Return names and kinds of the entries of a folder, sorted by name; nothing if it cannot be read."""
        try:
            with self.folder(path) as descriptor:
                return entries(descriptor)
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Return whether an entry exists, even if it is a link; raise OSError if that cannot be determined."""
        folder, _, name = path.rpartition("/")
        try:
            with self.folder(folder) as descriptor:
                os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def entries(folder: int) -> list[tuple[str, Kind]]:
    """Return names and kinds of the entries of an open folder, sorted by name."""
    with os.scandir(folder) as scan:
        return sorted((entry.name, _kind(entry)) for entry in scan)


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"


def version_of(folder: int) -> tuple[int, int] | None:
    """Return a value that changes whenever an open folder gets or loses an entry: its inode, and its time of change.

    None if the last change is so recent that another one could have the same time, since clocks of file systems
    tick only a few hundred times a second.
    """
    status = os.fstat(folder)
    if time.time_ns() - status.st_ctime_ns < SETTLED_NS:
        return None
    return status.st_ino, status.st_ctime_ns


def read_in(folder: int, name: str, limit: int) -> tuple[bytes, Stamp]:
    """Read like `Sandbox.read`, in an open folder. For anything but a regular file, raise OSError without waiting."""
    # Never follow a link, and never wait for the other end of a pipe.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        before = _stamp(descriptor)
        pieces, missing, expected = [], limit, before.size
        # Ask for hardly more than there is: the call allocates all its memory in advance, and for most files that is
        # much less than the limit.
        while missing > 0 and (piece := os.read(descriptor, min(missing, _AT_ONCE, max(expected, _AT_LEAST)))):
            pieces.append(piece)
            missing -= len(piece)
            expected -= len(piece)
        if _stamp(descriptor) != before:
            raise OSError(errno.ESTALE, "changed while it was read")
        return b"".join(pieces), before
    finally:
        os.close(descriptor)


def stamp_in(folder: int, name: str) -> Stamp:
    """Return the stamp of a file in an open folder, without opening it; raise OSError unless it is a regular file."""
    return _stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))


def has_other_names(folder: int, name: str) -> bool:
    """Return whether a file in an open folder has further names (hard links), through which it may be written.

    True if that cannot be determined.
    """
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_nlink > 1
    except OSError:
        return True


def _stamp(descriptor: int) -> Stamp:
    return _stamp_of(os.fstat(descriptor))


def _stamp_of(status: os.stat_result) -> Stamp:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    executable = bool(status.st_mode & stat.S_IXUSR)
    changed_ns, status_ns = _in_64_bits(status.st_mtime_ns), _in_64_bits(status.st_ctime_ns)
    return Stamp(status.st_size, changed_ns, executable, status_ns, status.st_ino)


def _in_64_bits(nanoseconds: int) -> int:
    """Return a time as the cache keeps it: equal until 2262."""
    return (nanoseconds + 2**63) % 2**64 - 2**63


def why(error: OSError) -> str:
    """Describe in a few words why a file could not be read."""
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
    """Suggest the existing folder with the most similar name; "" if there is none."""
    import difflib

    path = Path(root)
    try:
        matches = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)  # noqa: PTH208
    except OSError:
        return ""
    return f" (did you mean {str(path.with_name(matches[0]))!r}?)" if matches else ""


def _folder_flags() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
