"""Read and parse files for the index of `locate`: in this process, or in forks of it. No program is started.

    scanner = Scanner(root)
    scanner.fork(2)          # optional, and only while the process has a single thread
    scanner.put(["a.py", "b.py"], {})
    for scanned in scanner.rest():
        ...
    scanner.close()

Forks never outlive the process that made them, however it ends, and hold none of its standard streams.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reflectrl.wings.autoexplore.locate.arrays import digest
from reflectrl.wings.autoexplore.locate.contents import bytes_to_read, contents
from reflectrl.wings.autoexplore.locate.segments import SegmentBuilder
from reflectrl.wings.autoexplore.locate.store import Arrays
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

CUT, UNDECODABLE, UNREADABLE = 1, 2, 4
"""Remarks on files."""
Versions = Mapping[str, tuple[int, bytes]]
"""Path → size and digest of the version in the index."""
Task = tuple[Sequence[str], Versions]
"""Arguments of `scan`."""


@dataclass
class Scanned:
    """Files that were read.

    Attributes:
        arrays: segment of the files that were parsed. It and the lists have no others.
        paths, stamps, digests, remarks: of these files.
        same: path → stamp of files whose contents are those that the index knows already.
    """

    arrays: Arrays
    paths: list[str] = field(default_factory=list)
    stamps: list[Stamp] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    remarks: list[int] = field(default_factory=list)
    same: dict[str, Stamp] = field(default_factory=dict)


def scan(root: Path, paths: Sequence[str], versions: Versions) -> Scanned:
    """Read and parse files. A file that cannot be read is found by its path alone.

    Args:
        root: folder of the repository.
        paths: files.
        versions: contents in the index. A file with the same contents is not parsed again: touched, or copied back.
    """
    sandbox, builder = Sandbox(root, suggests=False), SegmentBuilder()
    scanned = Scanned({})
    for path in paths:
        remark, text, data, stamp = 0, b"", b"", Stamp(0, 0, False)
        try:
            data, stamp = sandbox.read(path, bytes_to_read(path))
            content = digest(data)[:8]
            if versions.get(path) == (stamp.size, content):
                scanned.same[path] = stamp
                continue
            searchable = contents(path, data, len(data) == stamp.size)
            text = searchable.text.encode("utf-8", "replace")
            remark = CUT * searchable.cut | UNDECODABLE * searchable.undecodable
        except OSError:
            content, remark = digest(b"")[:8], UNREADABLE
        builder.add(path, text)
        scanned.paths.append(path)
        scanned.stamps.append(stamp)
        scanned.digests.append(content)
        scanned.remarks.append(remark)
    scanned.arrays = builder.finish() | {"remarks": np.array(scanned.remarks, np.uint8)}
    return scanned


class Scanner:
    """Scans chunks of files, in forks of this process if there are some.

    Args:
        root: folder of the repository.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._processes: dict[Connection, BaseProcess] = {}
        self._tasks: deque[Task] = deque()
        self._running: dict[Connection, Task] = {}

    @property
    def is_forked(self) -> bool:
        """Return whether other processes do the work."""
        return bool(self._processes)

    def fork(self, count: int) -> None:
        """Fork this process, which must have a single thread, since other threads do not survive a fork."""
        import multiprocessing  # slow to import, and rarely needed

        context = multiprocessing.get_context("fork")
        for _ in range(count):
            ours, theirs = context.Pipe()
            inherited = [*self._processes, ours]
            process = context.Process(target=_work, args=(self._root, theirs, inherited, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process

    def put(self, paths: Sequence[str], versions: Versions) -> None:
        """Add files to scan."""
        self._tasks.append((paths, versions))
        self._hand_out()

    def ready(self) -> Iterator[Scanned]:
        """Yield what is scanned by now. Without forks, scan everything that was put in."""
        if self._processes:
            yield from self._received(0.0)
            return
        while self._tasks:
            yield scan(self._root, *self._tasks.popleft())

    def rest(self) -> Iterator[Scanned]:
        """Yield all that was put in and not yielded yet."""
        while self._tasks or self._running:
            yield from self._received(None) if self._processes else self.ready()

    def close(self) -> None:
        """End the forks at once, and drop what is not scanned yet."""
        self._tasks.clear()
        self._running.clear()
        for connection, process in self._processes.items():
            process.kill()
            connection.close()
        for process in self._processes.values():
            process.join()
        self._processes.clear()

    def _hand_out(self) -> None:
        for connection in [each for each in self._processes if each not in self._running]:
            if not self._tasks:
                return
            task = self._tasks.popleft()
            try:
                connection.send(task)
                self._running[connection] = task
            except OSError:
                self._lose(connection, task)

    def _received(self, seconds: float | None) -> Iterator[Scanned]:
        """Yield what the forks have sent, after waiting for the first for so long; None waits for ever."""
        from multiprocessing.connection import wait

        ready = wait(list(self._running), seconds)
        for connection in [each for each in self._running if each in ready]:
            task = self._running.pop(connection)
            try:
                scanned: Scanned = connection.recv()
            except (OSError, EOFError):
                self._lose(connection, task)
                continue
            self._hand_out()
            yield scanned

    def _lose(self, connection: Connection, task: Task) -> None:
        """Go on without a fork that has died, for want of memory perhaps. Its task is done by another, or here."""
        self._tasks.appendleft(task)
        connection.close()
        self._processes.pop(connection).join()
        self._hand_out()


def _work(root: Path, connection: Connection, inherited: Sequence[Connection], parent: int) -> None:
    """Scan what is sent, until the parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent ends the forks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:  # otherwise the end of a pipe would not be seen after the parent has gone
        other.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # a client waits for the end of the server's streams
        os.dup2(nothing, stream)
    _die_with(parent)
    with suppress(OSError, EOFError):
        while True:
            connection.send(scan(root, *connection.recv()))


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends. Elsewhere than on Linux, the pipe's end is seen."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError, ImportError):
        import ctypes

        library: Any = ctypes.CDLL(None)
        library.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended in the meantime
        os._exit(0)
