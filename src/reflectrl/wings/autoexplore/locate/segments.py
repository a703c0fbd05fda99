"""Segment of the index of `locate`: an inverted index of some files, as a few arrays that can be mapped from disk.

A segment never changes. A changed file goes into a new, small segment, and the old one's entry is ignored. Small
segments are merged from time to time.

Suffixes: T terms (runs of letters and digits), E entries (term in a file), W words, P postings (word in a file), D
files.
"""

from __future__ import annotations

import re
import string
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.kinds import kind_of
from reflectrl.wings.autoexplore.locate.syntax import syntax_of
from reflectrl.wings.autoexplore.words import LONGEST, PART, single_characters, word_of, words

STEM, FOLDER, DEFINED, HEAD, CODE = (1 << bit for bit in range(5))
"""Bit flags of the zones of a file: its name, a folder's name, names of definitions, the first comment, code."""
COMMENT_SHIFT = 5
"""Two bits above the zones: 0, 1, 2 or 3 and more occurrences in comments and documentation."""
HEAD_CHARACTERS = 500
"""Length of the first comment, or of the beginning of prose, that counts as `HEAD`."""
MOST_COUNT = 255

COLUMNS = {"lengths": np.float32, "kinds": np.uint8, "properties": np.uint8, "remarks": np.uint8}
"""Properties of a file, and their types: number of words, kind, properties, remarks."""

Arrays = dict[str, NDArray[np.generic]]
_SEPARATORS = bytes(set(range(128)) - set((string.ascii_letters + string.digits).encode()))
_BLANKED = bytes.maketrans(_SEPARATORS, b" " * len(_SEPARATORS))
"""Everything that is no letter or digit becomes a space. Bytes of other scripts are kept, and split later."""
_NAME = re.compile(rb"\w+")


def key_of(word: str) -> int:
    """Return the number of a word in the vocabulary: its bytes up to eight, else four bytes and a checksum."""
    data = word.encode("utf-8", "surrogateescape")
    if len(data) <= 8:
        return int.from_bytes(data, "big")
    return (int.from_bytes(data[:4], "big") << 32) | zlib.crc32(data)


def identifier(name: str) -> str:
    """Return the word under which a whole identifier is found: `getRetry_count` and `get_retry_count` are the same."""
    return "=" + name.replace("_", "").lower()


def _runs(data: bytes) -> list[bytes]:
    """Split into runs of letters and digits. Much faster than a regular expression."""
    return data.translate(_BLANKED).split()


class SegmentBuilder:
    """Collects files, then makes a segment of them."""

    def __init__(self) -> None:
        self._terms: defaultdict[bytes, int] = defaultdict(count().__next__)  # a new term gets the next number
        self._term_E, self._times_E, self._told_E, self._place_E = array("i"), array("i"), array("i"), array("B")
        self._entries_D, self._kind_D, self._properties_D = array("i"), array("B"), array("B")

    def __len__(self) -> int:
        return len(self._kind_D)

    def add(self, path: str, data: bytes) -> None:
        """Add a file.

        Args:
            path: path in the repository.
            data: searchable text in UTF-8; b"" for a file that is found by its path alone.
        """
        before = len(self._term_E)
        syntax = syntax_of(path)
        counts = Counter(_runs(data))
        if syntax.comments is None:
            comments, comment_counts = data, counts
        else:
            comments = b"\n".join(syntax.comments.findall(data))
            comment_counts = Counter(_runs(comments))
        self._extend(counts, comment_counts)
        folder, _, name = path.encode("utf-8", "surrogateescape").rpartition(b"/")
        self._mark(_runs(name.partition(b".")[0] or name), STEM)
        self._mark(_runs(folder), FOLDER)
        self._mark(_runs(comments[:HEAD_CHARACTERS]), HEAD)
        if syntax.definitions is not None:
            matches = syntax.definitions.findall(b"\n" + data)
            names = set(map(_first, matches)) if matches and type(matches[0]) is tuple else set(matches)
            self._mark(_runs(b" ".join(names)), DEFINED)
            identifiers = (name.replace(b"_", b"").lower() for name in names if len(name) > 2 and _NAME.fullmatch(name))
            self._mark([b"=" + name for name in identifiers], DEFINED)
        self._entries_D.append(len(self._term_E) - before)
        kind, properties = kind_of(path, data[:1000])
        self._kind_D.append(kind)
        self._properties_D.append(properties)

    def _extend(self, counts: Mapping[bytes, int], in_comments: Mapping[bytes, int]) -> None:
        self._term_E.extend(map(self._terms.__getitem__, counts))
        self._times_E.extend(counts.values())
        self._told_E.extend(counts.values() if in_comments is counts else map(in_comments.get, counts, repeat(0)))
        self._place_E.frombytes(bytes(len(counts)))

    def _mark(self, terms: Iterable[bytes], bit: int) -> None:
        """Add a zone to terms, without counting them again."""
        distinct = set(terms)
        self._term_E.extend(map(self._terms.__getitem__, distinct))
        nothing = bytes(4 * len(distinct))
        self._times_E.frombytes(nothing)
        self._told_E.frombytes(nothing)
        self._place_E.frombytes(bytes([bit]) * len(distinct))

    def finish(self) -> Arrays:
        """Return the arrays of the segment: postings sorted by word, then by file."""
        files = len(self._kind_D)
        numbers: defaultdict[str, int] = defaultdict(count().__next__)
        words_of_ = _Words()
        words_T = [[numbers[word] for word in words_of_(term)] for term in self._terms]
        keys_W = np.fromiter(map(key_of, numbers), np.uint64, len(numbers))
        order_W = keys_W.argsort()
        rank_W = np.empty(len(order_W), np.int64)
        rank_W[order_W] = np.arange(len(order_W))

        sizes_T = np.fromiter(map(len, words_T), np.int64, len(words_T))
        word_X = rank_W[np.fromiter((word for words in words_T for word in words), np.int64, int(sizes_T.sum()))]
        term_E = np.frombuffer(self._term_E, np.int32)
        file_E = np.repeat(np.arange(files), np.frombuffer(self._entries_D, np.int32))
        sizes_E, starts_T = sizes_T[term_E], sizes_T.cumsum() - sizes_T
        # One row per entry and word of its term; then rows of the same word and file are added up.
        row_entry = np.repeat(np.arange(len(term_E)), sizes_E)
        within = np.arange(len(row_entry)) - np.repeat(sizes_E.cumsum() - sizes_E, sizes_E)
        pair = word_X[starts_T[term_E][row_entry] + within] * max(files, 1) + file_E[row_entry]
        order = pair.argsort()  # not stable, since rows of a pair are added up anyway
        pair = pair[order]
        row_entry = row_entry[order]
        first_P = np.flatnonzero(np.diff(pair, prepend=-1))
        times_P = _added(np.frombuffer(self._times_E, np.int32)[row_entry], first_P)
        comment_times_P = _added(np.frombuffer(self._told_E, np.int32)[row_entry], first_P)
        zones = np.frombuffer(self._place_E, np.uint8)[row_entry]
        zones_P = np.bitwise_or.reduceat(zones, first_P) if len(first_P) else zones
        zones_P = zones_P | (CODE * (times_P > comment_times_P)).astype(np.uint8)
        times_P = times_P + (zones_P & (STEM | FOLDER) > 0)  # the path counts like a line of the text
        word_P, file_P = np.divmod(pair[first_P], max(files, 1))
        return {
            "keys": keys_W[order_W],
            "starts": np.concatenate(([0], np.bincount(word_P, minlength=len(keys_W)).cumsum())).astype(np.uint32),
            "files": file_P.astype(np.uint16 if files <= 1 << 16 else np.uint32),
            "times": np.minimum(times_P, MOST_COUNT).astype(np.uint8),
            "places": zones_P | (np.minimum(comment_times_P, 3) << COMMENT_SHIFT).astype(np.uint8),
            "lengths": np.bincount(file_P, times_P, files).astype(np.uint32),
            "kinds": np.frombuffer(self._kind_D, np.uint8).copy(),
            "properties": np.frombuffer(self._properties_D, np.uint8).copy(),
        }


def merged(parts: Sequence[tuple[Mapping[str, NDArray[np.generic]], NDArray[np.bool_]]]) -> Arrays:
    """Return a segment of the files of others, without reading them again.

    Args:
        parts: arrays of segments, each with a mask of the files to keep. The files keep their order.
    """
    keys, files, selected, kept_files = list[NDArray[Any]](), list[NDArray[Any]](), list[NDArray[Any]](), 0
    for arrays, is_kept in parts:
        new_numbers = kept_files + is_kept.cumsum() - 1
        is_selected = is_kept[arrays["files"]]
        keys.append(np.repeat(arrays["keys"], np.diff(arrays["starts"]))[is_selected])
        files.append(new_numbers[arrays["files"][is_selected]])
        selected.append(is_selected)
        kept_files += int(is_kept.sum())
    key_P, file_P = np.concatenate(keys), np.concatenate(files)
    order = np.lexsort((file_P, key_P))
    keys_W, counts_W = np.unique(key_P, return_counts=True)

    def gathered(name: str) -> NDArray[Any]:
        columns = [arrays[name][mask] for (arrays, _), mask in zip(parts, selected, strict=True)]
        return np.concatenate(columns)[order]

    return {
        "keys": keys_W,
        "starts": np.concatenate(([0], counts_W.cumsum())).astype(np.uint32),
        "files": file_P[order].astype(np.uint16 if kept_files <= 1 << 16 else np.uint32),
        "times": gathered("times"),
        "places": gathered("places"),
        **{name: np.concatenate([arrays[name][is_kept] for arrays, is_kept in parts]) for name in COLUMNS},
    }


def are_consistent(arrays: Mapping[str, NDArray[np.generic]]) -> bool:
    """Check that arrays from a file form a segment: their lengths, types and numbers fit together."""
    names = ("keys", "starts", "files", "times", "places", *COLUMNS)
    if any(name not in arrays for name in names):
        return False
    key_W, start_W, file_P = arrays["keys"], arrays["starts"], arrays["files"]
    count, postings = len(arrays["lengths"]), len(file_P)
    lengths = [len(arrays[name]) for name in COLUMNS] + [len(arrays[name]) for name in ("times", "places")]
    if lengths != [count] * len(COLUMNS) + [postings] * 2 or len(start_W) != len(key_W) + 1:
        return False
    if key_W.dtype != np.uint64 or any(array.dtype.kind != "u" for array in (start_W, file_P, arrays["places"])):
        return False
    in_order = bool(np.less(key_W[:-1], key_W[1:]).all() and np.less_equal(start_W[:-1], start_W[1:]).all())
    return in_order and start_W[0] == 0 and start_W[-1] == postings and (not postings or int(file_P.max()) < count)


def _first(groups: tuple[bytes, ...]) -> bytes:
    return next(filter(None, groups), b"")


class _Words:
    """Words of runs of letters and digits, as `words.words`. Parts of runs recur, and are stemmed once."""

    def __init__(self) -> None:
        self._stems: dict[str, str] = {}

    def __call__(self, term: bytes) -> list[str]:
        text = term.decode("utf-8", "replace")
        if text[:1] == "=":
            return [text]
        if not text.isascii():
            return [*words(text), *single_characters(text)]
        if len(text) > LONGEST:
            return words(text)
        stems = []
        for part in PART.findall(text):
            word = self._stems.get(part)
            if word is None:
                word = self._stems[part] = word_of(part.lower())
            if word:
                stems.append(word)
        return stems


def _added(values: NDArray[np.int32], first: NDArray[np.intp]) -> NDArray[np.int32]:
    return np.add.reduceat(values, first) if len(first) else values


class Segment:
    """Postings of a segment."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        self._keys_W, self._starts_W = arrays["keys"], arrays["starts"]
        self._files_P, self._times_P, self._places_P = arrays["files"], arrays["times"], arrays["places"]
        self.columns = {name: arrays[name] for name in COLUMNS}

    def __len__(self) -> int:
        return len(self.columns["lengths"])

    def find(self, word: str) -> tuple[NDArray[np.generic], NDArray[np.generic], NDArray[np.generic]] | None:
        """Return the files that hold a word, the number of occurrences, and the zones; None if no file does."""
        key = np.uint64(key_of(word))
        word_index = int(np.searchsorted(self._keys_W, key))
        if word_index == len(self._keys_W) or self._keys_W[word_index] != key:
            return None
        postings = slice(int(self._starts_W[word_index]), int(self._starts_W[word_index + 1]))
        return self._files_P[postings], self._times_P[postings], self._places_P[postings]
