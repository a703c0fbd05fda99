"""Index of a folder that may change: brought up to date before each question, and kept in the user's cache.

    index = LiveIndex("path/to/repository")
    index.refresh()
    index.corpus.find("retry")

Only changed files are read again, in chunks. What is done so far is searchable, and saved every second, so a refresh
that is interrupted is continued by the next one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from threading import Lock, RLock

import numpy as np

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters, Index, Visited, Walk
from reflectrl.wings.autoexplore.locate.arrays import digest
from reflectrl.wings.autoexplore.locate.contents import bytes_to_read, contents
from reflectrl.wings.autoexplore.locate.corpus import Corpus, Location
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.scanning import Scanned, Scanner
from reflectrl.wings.autoexplore.locate.segments import Segment, merged
from reflectrl.wings.autoexplore.locate.store import Arrays, Entry, Store, cache_folder, name_of
from reflectrl.wings.autoexplore.names import joined
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.watching import Changes, Watch

FILTERS = Filters(outside=True, non_ascii=False, configuration=True, nested_tests=True)
"""Files that `locate` searches."""
AT_ONCE = 256
"""Number of files of a chunk. What is interrupted loses one chunk for each process."""
WORTH_PROCESSES = 400
"""Smallest number of files that are divided among processes."""
SMALL, MOST_SMALL = 1024, 8
"""Segments with fewer than `SMALL` files are merged once there are more than `MOST_SMALL` of them."""
MOST_IN_PLACE = 1000
"""Largest number of files that are removed from an existing corpus; with more, a new one is made."""
KEPT_FILES = 512
"""Number of files whose text is kept between questions."""
LOOK_SECONDS = 0.3
"""Time for a look at the size of a folder."""
SAVE_SECONDS = 1.0
"""Time between two writes of the cache during a refresh."""


class LiveIndex:
    """Index of a folder.

    A thread may search, holding `lock`, while another one refreshes.

    Args:
        root: folder of the repository. It is resolved once, here.
        filters: files to search.
        cached: keep the index in the user's cache folder.
        watched: ask the kernel which folders have changed, instead of looking at all of them before each question. This
            is worth its start in a process that answers many. Where the kernel cannot be asked, all are looked at.
        refreshed: refresh it here. Otherwise it holds what the cache holds, until `refresh` is called.

    Raises:
        UserError: the folder does not exist, cannot be read, or has no file to search.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        filters: Filters = FILTERS,
        cached: bool = True,
        watched: bool = False,
        refreshed: bool = True,
    ) -> None:
        self._sandbox = Sandbox(root)
        self.root = self._sandbox.root
        self._filters = filters
        settings = " ".join(f"{key}={value}" for key, value in asdict(filters).items())
        self._store = Store(self.root, settings, cache_folder() if cached else None)
        self._listing, self._arrays = self._store.load()
        self._texts: dict[tuple[str, bytes], ReadFile] = {}
        self._watch = Watch() if watched else None
        self._walk = Walk(filters, self._watch)
        self._scanner = Scanner(self.root)
        self._to_scan: list[str] = []
        self._made: dict[int, Arrays] = {}  # segments that are not saved yet
        self._is_saved, self._save_time = True, 0.0
        self.corpus = Corpus(_locations(self._listing.entries), _as_segments(self._arrays))
        self._is_whole = True  # whether the corpus agrees with the list
        self._refreshing, self.lock = Lock(), RLock()
        self.indexed = 0
        """Number of files that the last refresh read."""
        self.total: int | None = None
        """Number of files to search; None until the first walk through all folders has ended."""
        if refreshed:
            self.refresh()

    @property
    def left_out(self) -> dict[str, int]:
        """Return reason → number of entries that were left out."""
        left_out = self._walk.left_out.copy()  # another thread may be counting
        return dict((+left_out).most_common())

    @property
    def rule_remarks(self) -> tuple[str, ...]:
        """Return what the user should know about the rules of git, a line each."""
        return self._walk.remarks

    def fork(self) -> None:
        """Fork the processes for the next refresh, if there is much to read. Call it before any thread is started."""
        if self._is_large():
            self._fork()

    def _fork(self) -> None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # Threads do not survive a fork, so a server that has threads by now parses files in its own process.
        if workers > 1 and threading.active_count() == 1:
            self._scanner.fork(workers)

    def _is_large(self) -> bool:
        """Return whether the folder holds many files that the index does not know. Looks at names only."""
        unknown, folders, deadline = 0, [""], time.monotonic() + LOOK_SECONDS
        for folder in folders:
            for name, kind in self._sandbox.listed(folder):
                path = joined(folder, name)
                if self._filters.of_name(name, kind == "folder", folder) is not None:
                    continue
                if kind == "folder":
                    folders.append(path)
                unknown += kind == "file" and path not in self._listing.entries
            if unknown >= WORTH_PROCESSES:
                return True
            if time.monotonic() > deadline:  # a client waits for its greeting
                break
        return False

    def refresh(self) -> None:
        """Bring the index up to date with the folder.

        Raises:
            UserError: the folder is missing, is a link now, or has no file to search.
        """
        with self._refreshing:
            try:
                self._refresh()
            finally:  # also after Ctrl-C: what is done stays done
                self._to_scan.clear()
                self._scanner.close()
                self._save()

    def _refresh(self) -> None:
        self._sandbox = sandbox = Sandbox(self.root, suggests=False)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        if not self._is_whole:
            self._rebuild()
        changes = None if self._watch is None else self._watch.changes(sandbox)
        if changes is not None:
            changes.folders |= self._walk.stale()
        self.indexed = 0
        if changes is None or not self._walk.is_followed:
            self._compare(sandbox, changes)
        elif changes.folders:
            self._compare_folders(self._walk.changed(sandbox, self._listing.former, changes), changes)
        if self._watch is not None:
            self._watch.trust(self._walk.folders)

    def _compare(self, sandbox: Sandbox, changes: Changes | None) -> None:
        """Bring the index up to date with a walk through all folders, and the changes that led to it."""
        reports = changes or Changes()

        def noticed(visited: Visited) -> None:
            self._scan(path for path, stamp in visited.files.items() if not self._is_known(path, stamp, reports))

        walked: Index = self._walk.everything(sandbox, self._listing.former, changes, noticed)
        gone = [path for path in self._listing.entries if path not in walked.files and path not in walked.refused]
        self._update(walked.refused, gone)

    def _compare_folders(self, before: Mapping[str, Visited | None], changes: Changes) -> None:
        """Bring the index up to date with a walk to some folders, which were different before."""
        changed, refused, gone = list[str](), dict[str, tuple[Stamp, str]](), list[str]()
        for path, former in before.items():
            files = {*former.files, *former.refused} if former is not None else set()
            folder = self._walk.folders.get(path)
            if folder is not None:
                changed += [file for file, stamp in folder.files.items() if not self._is_known(file, stamp, changes)]
                refused |= folder.refused
                files = files.difference(folder.files, folder.refused)
            gone += files
        self._scan(sorted(changed))
        self._update(refused, gone)

    def _is_known(self, path: str, stamp: Stamp, changes: Changes) -> bool:
        """Return whether the index holds the present version of a file."""
        entry = self._listing.entries.get(path)
        is_known = entry is not None and entry.segment >= 0 and entry.stamp == stamp
        return is_known and not changes.is_written(path)

    def _scan(self, paths: Iterable[str]) -> None:
        """Have files scanned, in whole chunks. Take in what is scanned by now."""
        self._to_scan += paths
        if not self._scanner.is_forked and len(self._to_scan) >= WORTH_PROCESSES:
            self._fork()
        while len(self._to_scan) >= (AT_ONCE if self._scanner.is_forked else max(AT_ONCE, WORTH_PROCESSES)):
            self._put()
        for scanned in self._scanner.ready():
            self._take_in(scanned)

    def _put(self) -> None:
        """Hand the first files that wait to the scanner."""
        paths, self._to_scan = self._to_scan[:AT_ONCE], self._to_scan[AT_ONCE:]
        self.indexed += len(paths)
        entries = {path: entry for path in paths if (entry := self._listing.entries.get(path)) is not None}
        versions = {path: (entry.stamp.size, entry.content) for path, entry in entries.items() if entry.segment >= 0}
        self._scanner.put(paths, versions)

    def _take_in(self, scanned: Scanned) -> None:
        """Make scanned files searchable."""
        with self.lock:
            self._is_whole = False  # until everything is done
            entries: dict[str, Entry] = {}
            if scanned.paths:
                segment = self._add_segment(scanned.arrays)
                for number, path in enumerate(scanned.paths):
                    entries[path] = Entry(scanned.stamps[number], scanned.digests[number], segment, number)
            touched = {path: replace(self._listing.entries[path], stamp=stamp) for path, stamp in scanned.same.items()}
            self._note((*entries, *touched))
            self._listing.entries.update(touched)
            self._listing.entries.update(entries)
            if entries:
                self.corpus.update((), _locations(entries), {segment: Segment(scanned.arrays)})
                self._merge_small()
                self._drop_unused()
            self._is_whole = True
        if time.monotonic() - self._save_time > SAVE_SECONDS:
            self._save()

    def _update(self, refused: Mapping[str, tuple[Stamp, str]], gone: Sequence[str]) -> None:
        """Bring list and corpus up to date at the end of a walk.

        Args:
            refused: files that were left out because of their contents.
            gone: paths that are not there any more.
        """
        self.total = self._walk.files
        if not self.total:
            left_out = ", ".join(f"{count} ({reason})" for reason, count in self.left_out.items())
            why = f"left out are {left_out}" if left_out else "it is empty"
            raise UserError(f"{str(self.root)!r} holds no file to explore: {why}")
        with self.lock:
            entries = self._refused_entries(refused)
            removed = [*gone, *entries]
            if removed:
                self._is_whole = False
                self._note(removed)
                for path in gone:
                    self._listing.entries.pop(path, None)
                self._listing.entries.update(entries)
                if len(removed) <= MOST_IN_PLACE:
                    self.corpus.update(removed, {}, {})
                    self._drop_unused()
                    self._is_whole = True
                else:
                    self._rebuild()
        while self._to_scan:
            self._put()
        for scanned in self._scanner.rest():
            self._take_in(scanned)

    def _rebuild(self) -> None:
        """Make the corpus anew from the list."""
        with self.lock:
            self.corpus = Corpus(_locations(self._listing.entries), _as_segments(self._arrays))
            self._drop_unused()
            self._is_whole = True

    def _note(self, paths: Iterable[str]) -> None:
        """Note that the entries of paths are about to change."""
        self._is_saved = False
        self._store.note(paths)

    def _refused_entries(self, refused: Mapping[str, tuple[Stamp, str]]) -> dict[str, Entry]:
        """Return the entries of files that were left out, unless the list has them already."""
        entries: dict[str, Entry] = {}
        for path, (stamp, reason) in refused.items():
            if reason not in self._listing.reasons:
                self._listing.reasons.append(reason)
            entry = Entry(stamp, bytes(8), -1, self._listing.reasons.index(reason))
            if self._listing.entries.get(path) != entry:
                entries[path] = entry
        return entries

    def _add_segment(self, arrays: Arrays) -> int:
        """Add a new segment to the list, and return its number."""
        names = self._listing.segments
        number = names.index("") if "" in names else len(names)
        names[number : number + 1] = [name_of(arrays)]
        self._arrays[number] = self._made[number] = arrays
        return number

    def _merge_small(self) -> None:
        """Merge small segments if there are many."""
        small = [number for number in self.corpus.segments if self.corpus.is_held(number).sum() < SMALL]
        if len(small) <= MOST_SMALL:
            return
        paths = [path for number in small for path in self.corpus.held_paths(number)]
        arrays = merged([(self._arrays[number], self.corpus.is_held(number)) for number in small])
        segment = self._add_segment(arrays)
        entries: dict[str, Entry] = {}
        for number, path in enumerate(paths):
            former = self._listing.entries[path]
            entries[path] = Entry(former.stamp, former.content, segment, number)
        self._note(entries)
        self._listing.entries.update(entries)
        self.corpus.update((), _locations(entries), {segment: Segment(arrays)})

    def _drop_unused(self) -> None:
        """Drop segments that hold no file any more."""
        for number in self._arrays.keys() - self.corpus.segments.keys():
            del self._arrays[number]
            self._made.pop(number, None)
            self._listing.segments[number] = ""

    def _save(self) -> None:
        """Write to the cache what has changed since the last time."""
        if self._is_saved:
            return
        made = {self._listing.segments[number]: arrays for number, arrays in self._made.items()}
        self._store.save(self._listing, made)
        self._made.clear()
        self._is_saved, self._save_time = True, time.monotonic()

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
        return [self.corpus.paths[file] for file in np.flatnonzero(self.corpus.remarks & bit).tolist()]


def _locations(entries: Mapping[str, Entry]) -> dict[str, Location]:
    """Return path → segment and number, for the files that are searched."""
    return {path: (entry.segment, entry.number) for path, entry in entries.items() if entry.segment >= 0}


def _as_segments(arrays: Mapping[int, Arrays]) -> dict[int, Segment]:
    return {number: Segment(each) for number, each in arrays.items()}
