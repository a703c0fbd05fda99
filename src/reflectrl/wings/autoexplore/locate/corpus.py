"""Files of a repository as the search sees them: segments, the numbers of their files, and statistics of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.segments import Segment

Files = NDArray[np.int32]
Counts = NDArray[np.float32]
Places = NDArray[np.uint8]


class Corpus:
    """Searchable files.

    Args:
        paths: paths of all files.
        segments: segments that hold them.
        numbers: for each segment, the index of each of its files in `paths`; -1 for a file that has changed since.
    """

    def __init__(self, paths: Sequence[str], segments: Sequence[Segment], numbers: Sequence[Files]) -> None:
        self.paths, self._segments, self._numbers = paths, segments, numbers
        self.lengths = self._gathered([segment.lengths for segment in segments], np.float32)
        self.kinds = self._gathered([segment.kinds for segment in segments], np.uint8)
        self.properties = self._gathered([segment.properties for segment in segments], np.uint8)
        self._found: dict[str, tuple[Files, Counts, Places]] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def _gathered(self, columns: Sequence[NDArray[np.generic]], kind: type) -> NDArray[Any]:
        values: NDArray[Any] = np.zeros(len(self.paths), kind)
        for column, numbers in zip(columns, self._numbers, strict=True):
            values[numbers[numbers >= 0]] = column[numbers >= 0]
        return values

    @cached_property
    def mean_length(self) -> float:
        """Return the mean number of words of a file."""
        return max(float(self.lengths.mean()), 1.0) if len(self) else 1.0

    @cached_property
    def folders(self) -> NDArray[np.int32]:
        """Return the index of each file's folder: folders are numbered in the order in which they first occur."""
        index_of: dict[str, int] = {}
        indices = [index_of.setdefault(path.rpartition("/")[0], len(index_of)) for path in self.paths]
        return np.array(indices, np.int32)

    def find(self, word: str) -> tuple[Files, Counts, Places]:
        """Return the files that hold a word, the number of occurrences in each, and its zones as bit flags."""
        if (cached := self._found.get(word)) is not None:
            return cached
        parts: list[tuple[Files, Counts, Places]] = []
        for segment, numbers in zip(self._segments, self._numbers, strict=True):
            postings = segment.find(word)
            if postings is not None:
                files = numbers[postings[0]]
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
