"""Folders whose changes the kernel reports (Linux, inotify), so that an unchanged repository is not walked again.

inotify(7) is called through `ctypes`. The packages that wrap it either start a program to find the C library, which
nothing here may do, or a thread. The kernel queues a report before the system call that changed something returns, so a
read without waiting gets every change that was made before it.

Some changes are not reported to a folder: a write through another name of the file (a hard link) elsewhere, a write to
mapped memory until it is unmapped, a file system that is mounted over a folder. So everything is looked at again after
`TRUSTED_SECONDS`.
"""

from __future__ import annotations

import array
import errno
import os
import struct
import sys
import time
import weakref
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from reflectrl.wings.autoexplore.names import joined, parent
from reflectrl.wings.autoexplore.sandbox import Sandbox

TRUSTED_SECONDS = 300.0
"""Time after which everything is looked at again."""
MOST_OF_LIMIT = 0.5
"""Largest share of the watches that a user may have (`fs.inotify.max_user_watches`). Editors need some too."""
LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"))
"""File systems that report every change. Those of networks and FUSE do not report what other machines do."""

# From <sys/inotify.h>.
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLY_FOLDERS, _IS_FOLDER = 0x1000000, 0x40000000
_REPLACED = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_WRITTEN = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE
_MASK = _WRITTEN | _REPLACED | _ATTRIB | _DELETE_SELF | _MOVE_SELF | _ONLY_FOLDERS
_EVENT = struct.Struct("iIII")


@dataclass
class Changes:
    """Reports of the kernel since the last look.

    Attributes:
        folders: folders whose entries, or the files in them, may have changed.
        files: files that were written or replaced, even if their stamps are as before.
        trees: folders that were put there as a whole.
    """

    folders: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    trees: set[str] = field(default_factory=set)

    def is_written(self, path: str) -> bool:
        """Return whether a file may have other contents, even if its stamp is as before."""
        return path in self.files or (bool(self.trees) and _is_within(path, self.trees))


class Watch:
    """Watch of a repository's folders.

    Call `changes`, look at the folders that it names, `follow` each of them before it is listed, and `trust` the result
    at the end. If that fails on the way, the next call of `changes` says that everything may have changed.

    Where the kernel cannot be asked, it always says so: on other systems, on file systems that are not `LOCAL`, and if
    there are too many folders (`MOST_OF_LIMIT`).
    """

    def __init__(self) -> None:
        self._inotify: _Inotify | None = None
        self._path_of: dict[int, str] = {}
        self._number_of: dict[str, int] = {}
        self._root: tuple[object, ...] = ()
        self._begun, self._most = 0.0, 0
        self._is_trusted = self._has_given_up = False

    def changes(self, sandbox: Sandbox) -> Changes | None:
        """Return what has changed since the last call; None if anything may have."""
        root = (sandbox.identity, os.getpid())  # a fork must not take the reports that its parent needs
        is_known = self._is_trusted and root == self._root and time.monotonic() - self._begun < TRUSTED_SECONDS
        self._is_trusted = False
        changes = self._reported() if is_known else None
        if changes is None:
            self._begin(sandbox)
            self._root = root
        return changes

    def follow(self, descriptor: int, path: str) -> bool:
        """Ask the kernel for the changes of an open folder; return whether it reports them from now on."""
        if self._inotify is None:
            return False
        try:
            if len(self._number_of) >= self._most:
                raise OSError(errno.ENOSPC, "too many folders")
            number = self._inotify.add(descriptor)
        except OSError:
            self._give_up()
            return False
        if self._path_of.get(number, path) != path:
            return False  # the same folder under another path: mounted twice, or moved during the walk
        former = self._number_of.get(path, number)
        if former != number:
            self._drop(path)
        self._path_of[number], self._number_of[path] = path, number
        return True

    def is_followed(self, path: str) -> bool:
        """Return whether the kernel reports the changes of a folder."""
        return path in self._number_of

    def trust(self, folders: Collection[str]) -> None:
        """Note that everything was looked at, and that only these folders are of interest."""
        if self._inotify is None:
            return
        if len(self._number_of) > len(folders):
            for path in [path for path in self._number_of if path not in folders]:
                self._drop(path)
        self._is_trusted = True

    def _begin(self, sandbox: Sandbox) -> None:
        """Start anew, without any watch."""
        self._end()
        if self._has_given_up:
            return
        try:
            if _file_system(sandbox) in LOCAL:
                limit = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text(encoding="ascii"))
                self._most = int(limit * MOST_OF_LIMIT)
                self._inotify = _Inotify()
                self._begun = time.monotonic()
        except (OSError, ValueError, ImportError, AttributeError):  # no such call, or too many users of it
            self._has_given_up = True

    def _end(self) -> None:
        self._path_of.clear()
        self._number_of.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _give_up(self) -> None:
        self._end()
        self._has_given_up = True

    def _reported(self) -> Changes | None:
        """Read the kernel's reports; None if some are missing."""
        assert self._inotify is not None
        changes, opened_anew = Changes(), set[str]()
        for number, mask, name in self._inotify.read():
            if mask & (_OVERFLOW | _UNMOUNT):
                return None
            folder = self._path_of.get(number)
            if folder is None:
                continue
            entry = joined(folder, name)
            if not name and not folder:
                return None  # the root itself was moved, deleted, or got other permissions
            if mask & (_DELETE_SELF | _MOVE_SELF | _IGNORED):
                self._drop(folder)
                changes.trees.add(folder)
                folder = parent(folder)
            elif not name:
                opened_anew.add(folder)  # with other permissions, perhaps nothing below can be opened
            elif mask & _IS_FOLDER and mask & _REPLACED:
                changes.trees.add(entry)
            elif mask & _WRITTEN:
                changes.files.add(entry)
            changes.folders.add(folder)
        opened_anew |= changes.trees
        if opened_anew:
            # Everything at such a path is looked at. Watches below it may belong to folders that lie elsewhere by now.
            for path in [path for path in self._number_of if _is_within(path, opened_anew)]:
                self._drop(path)
        return changes

    def _drop(self, path: str) -> None:
        assert self._inotify is not None
        number = self._number_of.pop(path)
        del self._path_of[number]
        with suppress(OSError):  # the kernel has dropped it already if the folder was deleted
            self._inotify.remove(number)


class _Inotify:
    """Instance of inotify. It is closed with the object."""

    def __init__(self) -> None:
        self._descriptor = _checked(_library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.close = weakref.finalize(self, os.close, self._descriptor)

    def add(self, descriptor: int) -> int:
        """Watch an open folder, and return the number of the watch: the same as before if it is watched already."""
        path = b"/proc/self/fd/%d" % descriptor  # no name that could lead elsewhere by now
        return _checked(_library().inotify_add_watch(self._descriptor, path, _MASK))

    def remove(self, number: int) -> None:
        """Remove a watch."""
        _checked(_library().inotify_rm_watch(self._descriptor, number))

    def read(self) -> list[tuple[int, int, str]]:
        """Return the reports until now, each with the number of the watch, the mask and the entry's name."""
        import fcntl
        import termios

        waiting = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, waiting)
        data = os.read(self._descriptor, waiting[0]) if waiting[0] else b""
        reports, start = [], 0
        while start < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, start)
            start += _EVENT.size + length
            reports.append((number, mask, os.fsdecode(data[start - length : start].rstrip(b"\0"))))
        return reports


@cache
def _library() -> Any:
    """Return the C library.

    Raises:
        OSError: the system has no inotify.
    """
    import ctypes

    if sys.platform != "linux":
        raise OSError("inotify is a part of Linux")
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    import ctypes

    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _is_within(path: str, folders: set[str]) -> bool:
    """Return whether a path is one of some folders, or lies below one."""
    while path and path not in folders:
        path = parent(path)
    return path in folders


def _file_system(sandbox: Sandbox) -> str:
    """Return the name of the file system on which a repository lies; "" if it is unknown."""
    with sandbox.folder("") as descriptor:
        about = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    # The number of the mount, since on btrfs the device of a file differs from that of its mount.
    numbers = [line.split()[1] for line in about.splitlines() if line.startswith("mnt_id:")]
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[:1] == numbers:
            return source.split()[0]
    return ""
