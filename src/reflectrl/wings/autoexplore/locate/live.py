"""Index of a folder that may change: brought up to date before each question, and kept in the user's cache.

    index = LiveIndex("path/to/repository")
    index.refresh()
    index.corpus.find("retry")

Only changed files are read again. If there are many, forks of this process parse them; no program is started.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters, Index, Visited, index
from reflectrl.wings.autoexplore.locate.arrays import digest
from reflectrl.wings.autoexplore.locate.contents import bytes_to_read, contents
from reflectrl.wings.autoexplore.locate.corpus import Corpus
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.segments import Segment, SegmentBuilder
from reflectrl.wings.autoexplore.locate.store import Arrays, Entry, Listing, Store, cache_folder, name_of
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.watching import Changes, Watch

FILTERS = Filters(non_ascii=False, configuration=True, nested_tests=True)
"""Files that `locate` searches."""
AT_ONCE = 4096
"""Largest number of files of a segment."""
WORTH_PROCESSES = 400
"""Smallest number of files that are divided among processes."""
SMALL, MOST_SMALL = 256, 8
"""Segments with fewer than `SMALL` files are merged once there are more than `MOST_SMALL` of them."""
KEPT_FILES = 512
"""Number of files whose text is kept between questions."""
CUT, UNDECODABLE, UNREADABLE = 1, 2, 4


@dataclass
class Scanned:
    """Files that were parsed: a segment, and for each file its stamp, the digest of its contents, and remarks."""

    arrays: Arrays
    paths: list[str] = field(default_factory=list)
    stamps: list[Stamp] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    remarks: list[int] = field(default_factory=list)


def scan(root: Path, paths: Sequence[str]) -> Scanned:
    """Read and parse files. A file that cannot be read is found by its path alone."""
    sandbox, builder = Sandbox(root), SegmentBuilder()
    scanned = Scanned({})
    for path in paths:
        remark, text, data, stamp = 0, b"", b"", Stamp(0, 0, False)
        try:
            data, stamp = sandbox.read(path, bytes_to_read(path))
            searchable = contents(path, data, len(data) == stamp.size)
            text = searchable.text.encode("utf-8", "replace")
            remark = CUT * searchable.cut | UNDECODABLE * searchable.undecodable
        except OSError:
            remark = UNREADABLE
        builder.add(path, text)
        scanned.paths.append(path)
        scanned.stamps.append(stamp)
        scanned.digests.append(digest(data)[:8])
        scanned.remarks.append(remark)
    scanned.arrays = builder.finish() | {"remarks": np.array(scanned.remarks, np.uint8)}
    return scanned


class LiveIndex:
    """Index of a folder.

    Args:
        root: folder of the repository. It is resolved once, here.
        filters: files to search.
        cached: keep the index in the user's cache folder.
        watched: ask the kernel which folders have changed, instead of looking at all of them before each question. This
            is worth its start in a process that answers many. Where the kernel cannot be asked, all are looked at.

    Raises:
        UserError: the folder does not exist, cannot be read, or has no file to search.
    """

    def __init__(
        self, root: str | os.PathLike[str], filters: Filters = FILTERS, cached: bool = True, watched: bool = False
    ) -> None:
        self._sandbox = Sandbox(root)
        self.root = self._sandbox.root
        self._filters = filters
        settings = " ".join(f"{key}={value}" for key, value in asdict(filters).items())
        self._store = Store(self.root, settings, cache_folder() if cached else None)
        self._listing, self._arrays = self._store.load()
        self._texts: dict[tuple[str, bytes], ReadFile] = {}
        self._watch = Watch() if watched else None
        self._walked = Index({}, {}, {})
        self._folders: dict[str, Visited] = {}
        self._remarks: dict[int, list[str]] = {}
        self.left_out: Mapping[str, int] = {}
        """Reason → number of entries that were left out."""
        self.corpus = Corpus([], [], [])
        self.indexed = 0
        """Number of files that the last refresh parsed."""
        self.refresh()

    def refresh(self) -> None:
        """Bring the index up to date with the folder.

        Raises:
            UserError: the folder is missing, is a link now, or has no file to search.
        """
        self._sandbox = sandbox = Sandbox(self.root)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        changes = None if self._watch is None else self._watch.changes(sandbox)
        self.indexed = 0
        if changes is None or changes.folders or not self._walked.is_followed:
            self._walked = index(sandbox, self._filters, self._former, self._folders, self._watch, changes)
            self._take_in(self._walked, changes or Changes())
        if self._watch is not None:
            self._watch.trust(self._folders)

    def _take_in(self, walked: Index, changes: Changes) -> None:
        """Bring the index up to date with a walk, and the changes that led to it."""
        former = self._listing
        if not walked.files:
            left_out = ", ".join(f"{count} ({reason})" for reason, count in walked.left_out.items())
            why = f"left out are {left_out}" if left_out else "it is empty"
            raise UserError(f"{str(self.root)!r} holds no file to explore: {why}")
        self.left_out = walked.left_out
        unchanged = {
            path: entry
            for path, stamp in walked.files.items()
            if (entry := former.entries.get(path)) is not None and entry.segment >= 0 and entry.stamp == stamp
            if not changes.is_written(path)
        }
        changed = [path for path in walked.files if path not in unchanged]
        refused = {path: (stamp, reason) for path, (stamp, reason) in walked.refused.items()}
        self.indexed = len(changed)
        gone = len(unchanged) + len(refused) < len(former.entries)
        if changed or gone or not len(self.corpus) or len(walked.files) != len(self.corpus):
            self._update(unchanged, changed, refused, save=bool(changed or gone))

    def _former(self, path: str) -> tuple[Stamp, str | None] | None:
        """Return the stamp of a file in the list, and the reason for leaving it out, or None."""
        entry = self._listing.entries.get(path)
        if entry is None:
            return None
        return entry.stamp, self._listing.reasons[entry.number] if entry.segment < 0 else None

    def _update(
        self, unchanged: dict[str, Entry], changed: list[str], refused: Mapping[str, tuple[Stamp, str]], save: bool
    ) -> None:
        """Make segments of changed files, and a new list."""
        sizes = Counter(entry.segment for entry in unchanged.values())
        small = [position for position, files in sizes.items() if files < SMALL]
        if changed and len(small) > MOST_SMALL:
            changed = sorted({*changed, *(path for path, entry in unchanged.items() if entry.segment in small)})
            unchanged = {path: entry for path, entry in unchanged.items() if entry.segment not in small}
        used = sorted({entry.segment for entry in unchanged.values()})
        names = [self._listing.segments[position] for position in used]
        renumbered = {position: new_position for new_position, position in enumerate(used)}
        entries = dict(unchanged)
        if used != list(range(len(used))):  # some segments are not in use any more
            entries = {path: _moved(entry, renumbered) for path, entry in unchanged.items()}
        new_segments: dict[str, Arrays] = {}
        for scanned in self._scanned(changed):
            name = name_of(scanned.arrays)
            new_segments[name] = scanned.arrays
            for position, path in enumerate(scanned.paths):
                entries[path] = Entry(scanned.stamps[position], scanned.digests[position], len(names), position)
            names.append(name)
        reasons = sorted({reason for _, reason in refused.values()})
        for path, (stamp, reason) in refused.items():
            entries[path] = Entry(stamp, bytes(8), -1, reasons.index(reason))
        self._listing = Listing(dict(sorted(entries.items())), names, reasons)
        self._arrays = {name: new_segments[name] if name in new_segments else self._arrays[name] for name in names}
        if save:
            self._store.save(self._listing, new_segments)
        self._build()

    def _scanned(self, paths: Sequence[str]) -> Iterable[Scanned]:
        if not paths:
            return []
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        chunks = _chunks(paths, workers if len(paths) >= WORTH_PROCESSES else 1)
        # Threads do not survive a fork, so a server with threads parses files in its own process.
        alone = workers == 1 or len(chunks) == 1 or threading.active_count() > 1
        if alone:
            return [scan(self.root, chunk) for chunk in chunks]
        import multiprocessing  # slow to import, and rarely needed
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
            return list(pool.map(partial(scan, self.root), chunks))

    def _build(self) -> None:
        """Make the corpus of the list."""
        paths = [path for path, entry in self._listing.entries.items() if entry.segment >= 0]
        arrays = [self._arrays[name] for name in self._listing.segments]
        numbers: list[NDArray[np.int32]] = [np.full(len(each["lengths"]), -1, np.int32) for each in arrays]
        for file_index, path in enumerate(paths):
            entry = self._listing.entries[path]
            numbers[entry.segment][entry.number] = file_index
        self.corpus = Corpus(paths, [Segment(each) for each in arrays], numbers)
        self._remarks = {}

    def read(self, path: str) -> ReadFile | None:
        """Return the text of a file with its passages; None if it cannot be read or has changed."""
        entry = self._listing.entries.get(path)
        if entry is None or entry.segment < 0:
            return None
        key = (path, entry.content)
        if key not in self._texts:
            try:
                data, stamp = self._sandbox.read(path, bytes_to_read(path))
            except OSError:
                return None
            if digest(data)[:8] != entry.content:
                return None
            while len(self._texts) >= KEPT_FILES:
                del self._texts[next(iter(self._texts))]
            self._texts[key] = ReadFile(path, contents(path, data, len(data) == stamp.size).text)
        return self._texts[key]

    def remarks(self, bit: int) -> list[str]:
        """Return the files with a remark: `CUT`, `UNDECODABLE` or `UNREADABLE`."""
        if bit not in self._remarks:
            remarks = [self._arrays[name]["remarks"] for name in self._listing.segments]
            self._remarks[bit] = [
                path
                for path, entry in self._listing.entries.items()
                if entry.segment >= 0 and remarks[entry.segment][entry.number] & bit
            ]
        return self._remarks[bit]


def _moved(entry: Entry, renumbered: Mapping[int, int]) -> Entry:
    return Entry(entry.stamp, entry.content, renumbered[entry.segment], entry.number)


def _chunks(paths: Sequence[str], workers: int) -> list[Sequence[str]]:
    """Divide paths into chunks: as many as there are workers, or more if they would be too large."""
    size = min(AT_ONCE, -(-len(paths) // workers))
    return [paths[start : start + size] for start in range(0, len(paths), size)]
