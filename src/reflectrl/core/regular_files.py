"""Read files that may come from a stranger: regular files only, and never more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

LARGEST_FILE = 1 << 28
"""Largest number of bytes that are read of a file that may come from a stranger, unless a caller says otherwise."""
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""Paths of pipes that the user has opened for this command, as the shell does for `<(command)`."""
_KERNEL = ("/proc/", "/sys/")
"""Folders of files that look regular, but may have no end, or wait for an event."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file that may come from a stranger, for reading bytes.

    Raises:
        OSError: it cannot be opened, or is a pipe, a device or a file of the kernel, whose end might never come. Pipes
            that the user's shell has opened are allowed.
    """
    name = os.fspath(path)
    if name.startswith(_DESCRIPTORS):
        return path.open("rb")
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(mode) or os.path.realpath(path).startswith(_KERNEL):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int = LARGEST_FILE) -> bytes:
    """Read a file that may come from a stranger.

    Raises:
        OSError: it cannot be read, has more than `most` bytes, or is no regular file (see `open_regular`).
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data
