"""Files of a repository as the search sees them: segments, the numbers of their files, and statistics of words."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.segments import COLUMNS, Segment

Files = NDArray[np.int32]
Counts = NDArray[np.float32]
Places = NDArray[np.uint8]
Location = tuple[int, int]
"""Number of a segment, and of a file in it."""


class Corpus:
    """Searchable files, sorted by path.

    Args:
        locations: path → number of the segment that holds the file, and its number there.
        segments: segments by number.

    Attributes:
        paths: paths of all files.
        segments: segments that hold them, by number.
        lengths, kinds, properties, remarks: of each file, as in `segments.COLUMNS`.
        folders: number of each file's folder.
    """

    def __init__(self, locations: Mapping[str, Location], segments: Mapping[int, Segment]) -> None:
        self.paths = sorted(locations)
        self.segments = dict(segments)
        self._numbers: dict[int, Files] = {}
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros(len(self.paths), kind) for name, kind in COLUMNS.items()
        }
        self._folder_numbers: dict[str, int] = {}
        self.folders = np.array([self._folder_of(path) for path in self.paths], np.int32)
        self._take_in({path: index for index, path in enumerate(self.paths)}, locations, segments)

    def __len__(self) -> int:
        return len(self.paths)

    def update(self, gone: Iterable[str], locations: Mapping[str, Location], segments: Mapping[int, Segment]) -> None:
        """Bring the corpus up to date with a few changes; equals a new one.

        Args:
            gone: paths of files that are not there any more; others are ignored.
            locations: as for a new corpus, of new and changed files.
            segments: new segments, which hold all of these files.
        """
        self._remove(sorted(path for path in gone if self._has(path)))
        self._insert(sorted(path for path in locations if not self._has(path)))
        indices = {path: bisect_left(self.paths, path) for path in locations}
        unchanged = np.arange(len(self.paths), dtype=np.int32)
        unchanged[list(indices.values())] = -1
        self._renumber(unchanged)
        self._take_in(indices, locations, segments)

    def is_held(self, segment: int) -> NDArray[np.bool_]:
        """Return for each file of a segment whether it is the version that is searched."""
        return self._numbers[segment] >= 0

    def held_paths(self, segment: int) -> list[str]:
        """Return the paths of those files, in the segment's order."""
        numbers = self._numbers[segment]
        return [self.paths[index] for index in numbers[numbers >= 0].tolist()]

    def _has(self, path: str) -> bool:
        index = bisect_left(self.paths, path)
        return index < len(self.paths) and self.paths[index] == path

    def _remove(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        indices = [bisect_left(self.paths, path) for path in paths]
        is_kept = np.ones(len(self.paths), bool)
        is_kept[indices] = False
        self._renumber(np.where(is_kept, is_kept.cumsum() - 1, -1).astype(np.int32))
        for index in reversed(indices):
            del self.paths[index]
        self._columns = {name: column[is_kept] for name, column in self._columns.items()}
        self.folders = self.folders[is_kept]

    def _insert(self, paths: Sequence[str]) -> None:
        """Make room for new files."""
        if not paths:
            return
        indices = [bisect_left(self.paths, path) for path in paths]
        former = np.arange(len(self.paths), dtype=np.int32)
        self._renumber(former + np.searchsorted(indices, former, side="right").astype(np.int32))
        for index, path in zip(reversed(indices), reversed(paths), strict=True):
            self.paths.insert(index, path)
        self._columns = {name: np.insert(column, indices, 0) for name, column in self._columns.items()}
        self.folders = np.insert(self.folders, indices, [self._folder_of(path) for path in paths])

    def _renumber(self, new_indices: Files) -> None:
        """Give files new indices.

        Args:
            new_indices: new index of each file; -1 for a version that is not searched any more.
        """
        with_none = np.append(new_indices, np.int32(-1))  # so that -1 stays -1
        for segment, numbers in self._numbers.items():
            self._numbers[segment] = with_none[numbers]

    def _folder_of(self, path: str) -> int:
        return self._folder_numbers.setdefault(path.rpartition("/")[0], len(self._folder_numbers))

    def _take_in(
        self, indices: Mapping[str, int], locations: Mapping[str, Location], segments: Mapping[int, Segment]
    ) -> None:
        """Take in new segments, and drop those that hold no file any more."""
        for segment_number, segment in segments.items():
            self.segments[segment_number] = segment
            self._numbers[segment_number] = np.full(len(segment), -1, np.int32)
        for path, (segment_number, number) in locations.items():
            self._numbers[segment_number][number] = indices[path]
        for segment_number, segment in segments.items():
            is_held = self.is_held(segment_number)
            for name, column in segment.columns.items():
                self._columns[name][self._numbers[segment_number][is_held]] = column[is_held]
        for segment_number in list(self.segments):
            if not self.is_held(segment_number).any():
                del self.segments[segment_number], self._numbers[segment_number]
        self.lengths, self.kinds, self.properties, self.remarks = (self._columns[name] for name in COLUMNS)
        self.mean_length = max(float(self.lengths.mean()), 1.0) if len(self) else 1.0
        self._found: dict[str, tuple[Files, Counts, Places]] = {}

    def find(self, word: str) -> tuple[Files, Counts, Places]:
        """Return the files that hold a word, the number of occurrences in each, and its zones as bit flags."""
        if (cached := self._found.get(word)) is not None:
            return cached
        parts: list[tuple[Files, Counts, Places]] = []
        for number, segment in self.segments.items():
            postings = segment.find(word)
            if postings is not None:
                files = self._numbers[number][postings[0]]
                alive = files >= 0
                parts.append((files[alive], postings[1][alive].astype(np.float32), postings[2][alive]))
        if not parts:
            parts.append((np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.uint8)))
        files, times, zones = (np.concatenate(column) for column in zip(*parts, strict=True))
        if len(self._found) < 4096:
            self._found[word] = files, times, zones
        return files, times, zones

    def rarity(self, word: str) -> float:
        """Return the inverse document frequency of a word: positive, and larger for rarer words."""
        holding = len(self.find(word)[0])
        return math.log1p((len(self) - holding + 0.5) / (holding + 0.5))
