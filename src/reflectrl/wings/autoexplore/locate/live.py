"""Index of a folder that may change: brought up to date before each question, and kept in the user's cache.

    index = LiveIndex("path/to/repository")
    index.refresh()
    index.corpus.find("retry")

Only changed files are read again. If there are many, forks of this process parse them; no program is started.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters, Index, Visited, Walk
from reflectrl.wings.autoexplore.locate.arrays import digest
from reflectrl.wings.autoexplore.locate.contents import bytes_to_read, contents
from reflectrl.wings.autoexplore.locate.corpus import Corpus, Location
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.segments import Segment, SegmentBuilder, merged
from reflectrl.wings.autoexplore.locate.store import Arrays, Entry, Store, cache_folder, name_of
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.watching import Changes, Watch

FILTERS = Filters(outside=True, non_ascii=False, configuration=True, nested_tests=True)
"""Files that `locate` searches."""
AT_ONCE = 4096
"""Largest number of files of a segment."""
WORTH_PROCESSES = 400
"""Smallest number of files that are divided among processes."""
SMALL, MOST_SMALL = 256, 8
"""Segments with fewer than `SMALL` files are merged once there are more than `MOST_SMALL` of them."""
MOST_IN_PLACE = 1000
"""Largest number of changes that are made in an existing corpus."""
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
        settings = " ".join(f"{key}={value}" for key, value in asdict(filters).items())
        self._store = Store(self.root, settings, cache_folder() if cached else None)
        self._listing, self._arrays = self._store.load()
        self._texts: dict[tuple[str, bytes], ReadFile] = {}
        self._watch = Watch() if watched else None
        self._walk = Walk(filters, self._watch)
        self.corpus = Corpus({}, {})
        self._is_whole = False  # whether the corpus holds all files of the list
        self.indexed = 0
        """Number of files that the last refresh parsed."""
        self.refresh()

    @property
    def left_out(self) -> dict[str, int]:
        """Return reason → number of entries that were left out."""
        return dict((+self._walk.left_out).most_common())

    @property
    def rule_remarks(self) -> tuple[str, ...]:
        """Return what the user should know about the rules of git, a line each."""
        return self._walk.remarks

    def refresh(self) -> None:
        """Bring the index up to date with the folder.

        Raises:
            UserError: the folder is missing, is a link now, or has no file to search.
        """
        self._sandbox = sandbox = Sandbox(self.root)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        changes = None if self._watch is None else self._watch.changes(sandbox)
        if changes is not None:
            changes.folders |= self._walk.stale()
        self.indexed = 0
        if changes is None or not self._walk.is_followed:
            self._compare(self._walk.everything(sandbox, self._listing.former, changes), changes or Changes())
        elif changes.folders:
            self._compare_folders(self._walk.changed(sandbox, self._listing.former, changes), changes)
        if self._watch is not None:
            self._watch.trust(self._walk.folders)

    def _compare(self, walked: Index, changes: Changes) -> None:
        """Bring the index up to date with a walk through all folders, and the changes that led to it."""
        changed = [path for path, stamp in walked.files.items() if not self._is_known(path, stamp, changes)]
        gone = [path for path in self._listing.entries if path not in walked.files and path not in walked.refused]
        self._update(changed, walked.refused, gone)

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
        self._update(sorted(changed), refused, gone)

    def _is_known(self, path: str, stamp: Stamp, changes: Changes) -> bool:
        """Return whether the index holds the present version of a file."""
        entry = self._listing.entries.get(path)
        is_known = entry is not None and entry.segment >= 0 and entry.stamp == stamp
        return is_known and not changes.is_written(path)

    def _update(self, changed: Sequence[str], refused: Mapping[str, tuple[Stamp, str]], gone: Sequence[str]) -> None:
        """Bring list, corpus and cache up to date.

        Args:
            changed: files to parse.
            refused: files that were left out because of their contents.
            gone: paths that are not there any more.
        """
        if not self._walk.files:
            left_out = ", ".join(f"{count} ({reason})" for reason, count in self.left_out.items())
            why = f"left out are {left_out}" if left_out else "it is empty"
            raise UserError(f"{str(self.root)!r} holds no file to explore: {why}")
        self.indexed = len(changed)
        scanned = self._scanned(changed)
        entries = self._refused_entries(refused)
        if self._is_whole and not (scanned or entries or gone):
            return
        # A few changes are made in place, since a new corpus takes long in a large repository.
        in_place = self._is_whole and len(changed) + len(entries) + len(gone) <= MOST_IN_PLACE
        self._is_whole = False  # until everything is done
        removed = [*gone, *entries]
        segments: dict[int, Arrays] = {}
        for part in scanned:
            segment = self._add_segment(part.arrays, segments)
            for number, path in enumerate(part.paths):
                entries[path] = Entry(part.stamps[number], part.digests[number], segment, number)
        self._store.note((*gone, *entries))
        for path in gone:
            self._listing.entries.pop(path, None)
        self._listing.entries.update(entries)
        if in_place:
            self.corpus.update(removed, _locations(entries), _as_segments(segments))
            self._merge_small(segments)
        else:
            self.corpus = Corpus(_locations(self._listing.entries), _as_segments(self._arrays))
        for number in self._arrays.keys() - self.corpus.segments.keys():
            del self._arrays[number]
            self._listing.segments[number] = ""
        if entries or gone:
            made = {self._listing.segments[number]: arrays for number, arrays in segments.items()}
            self._store.save(self._listing, made)
        self._is_whole = True

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

    def _add_segment(self, arrays: Arrays, segments: dict[int, Arrays]) -> int:
        """Add a new segment to the list and to `segments`, and return its number."""
        names = self._listing.segments
        number = names.index("") if "" in names else len(names)
        names[number : number + 1] = [name_of(arrays)]
        self._arrays[number] = segments[number] = arrays
        return number

    def _merge_small(self, segments: dict[int, Arrays]) -> None:
        """Merge small segments if there are many, and add the new one to `segments`."""
        small = [number for number in self.corpus.segments if self.corpus.is_held(number).sum() < SMALL]
        if len(small) <= MOST_SMALL:
            return
        paths = [path for number in small for path in self.corpus.held_paths(number)]
        arrays = merged([(self._arrays[number], self.corpus.is_held(number)) for number in small])
        for number in small:
            segments.pop(number, None)
        segment = self._add_segment(arrays, segments)
        entries: dict[str, Entry] = {}
        for number, path in enumerate(paths):
            former = self._listing.entries[path]
            entries[path] = Entry(former.stamp, former.content, segment, number)
        self._store.note(entries)
        self._listing.entries.update(entries)
        self.corpus.update((), _locations(entries), {segment: Segment(arrays)})

    def _scanned(self, paths: Sequence[str]) -> list[Scanned]:
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


def _chunks(paths: Sequence[str], workers: int) -> list[Sequence[str]]:
    """Divide paths into chunks: as many as there are workers, or more if they would be too large."""
    size = min(AT_ONCE, -(-len(paths) // workers))
    return [paths[start : start + size] for start in range(0, len(paths), size)]
