"""Passages of a file that was read: definitions, headings or paragraphs, and the words of a question that they hold."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.meaning import Meaning
from reflectrl.wings.autoexplore.locate.syntax import syntax_of
from reflectrl.wings.autoexplore.words import is_unspaced, stem, words, words_of

MOST_LINES = 60
"""Longest passage, in lines. The rest of a longer one is divided into passages without a name."""
PARAGRAPH_LINES = 25
"""Length of the passages of a file without definitions."""
MOST_PASSAGES = 400
MOST_OCCURRENCES = 200
"""Number of places of a word that are looked up in a file."""
MOST_REMEMBERED = 512
"""Number of words whose occurrences in a file are remembered."""
WORTH_RULING_OUT = 8
"""Number of names from which on it is faster to rule some out than to search a text for all of them."""
_SMALL = re.compile(r"[a-z]*")
_GRAM = 8
"""Number of characters that are compared as one number."""
_FOUR, _GRAM_BITS = 4, 15
"""Number of characters by which names are ruled out, and the bits of their hash."""


class ReadFile:
    """Text of a file and its passages. It is kept between questions.

    Args:
        path: path of the file.
        text: text in UTF-8.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.lower = _lower(text)
        self._lines = _line_ends(text)
        self.names, self._bounds = _divided(path, text, self._lines)
        self.words = [name_words(name) for name in self.names]
        self._offsets_of: dict[tuple[str, str], list[int]] = {}
        self._mentioned: dict[str, bool] = {}
        self._vectors: tuple[Meaning, NDArray[np.float32]] | None = None

    def hits(self, forms: Mapping[str, str]) -> dict[str, list[int]]:
        """Return word → offsets at which it occurs, for the words of a question that occur."""
        hits: dict[str, list[int]] = {}
        parts = None
        for word, form in forms.items():
            offsets = self._offsets_of.get((word, form))
            if offsets is None:
                if parts is None:
                    parts = _parts_of(self.text, self.lower)
                _make_room(self._offsets_of)
                offsets = self._offsets_of[word, form] = self._offsets(word, form, parts)
            if offsets:
                hits[word] = offsets
        return hits

    def mentions(self, name: str) -> bool:
        """Return whether a name in lower case occurs anywhere in the text."""
        mentioned = self._mentioned.get(name)
        if mentioned is None:
            _make_room(self._mentioned)
            mentioned = self._mentioned[name] = name in self.lower
        return mentioned

    def occurrences(self, name: str) -> list[int]:
        """Return the first offsets at which a name occurs, written in this way."""
        starts, start = list[int](), -1
        while (start := self.text.find(name, start + 1)) >= 0 and len(starts) < MOST_OCCURRENCES:
            starts.append(start)
        return starts

    def _offsets(self, word: str, form: str, parts: _Parts) -> list[int]:
        prefix = _shared_prefix(word, form)
        starts = self._starts(prefix.text) if prefix.gram is None else parts.find(prefix)
        lower, text, offsets, length = self.lower, self.text, list[int](), len(prefix.text)
        for start in starts:
            end = start + length
            # A part of an identifier ends before the next capital or digit.
            rest = _SMALL.match(text, end) if prefix.is_plain else None
            part_end = rest.end() if rest is not None else end
            if stem(lower[start:part_end]) == word:
                offsets.append(start)
                if len(offsets) == MOST_OCCURRENCES:
                    break
        return offsets

    def _starts(self, prefix: str) -> Iterator[int]:
        """Return the offsets of the parts of identifiers that begin with a prefix. Works for any text."""
        lower, text, start = self.lower, self.text, 0
        while (start := lower.find(prefix, start)) >= 0:
            before = lower[start - 1 : start]
            # A part begins after a character that is not a letter, or with a capital: `maxRetries`.
            is_start = not before.isalpha() or is_unspaced(before) or is_unspaced(prefix)
            if prefix.isdigit() or is_start or (text[start].isupper() and not text[start - 1].isupper()):
                yield start
            start += len(prefix)

    def vectors(self, meaning: Meaning) -> NDArray[np.float32]:
        """Return the vectors of the passages' names, (passages, size)."""
        prepare_vectors([self], meaning)
        assert self._vectors is not None
        return self._vectors[1]

    def sizes(self) -> list[int]:
        """Return the length of each passage in characters."""
        return [end - start for start, end in zip(self._bounds, [*self._bounds[1:], len(self.text)], strict=True)]

    def counts(self, hits: Mapping[str, Sequence[int]]) -> dict[int, dict[str, int]]:
        """Return index of a passage → word of the question → number of occurrences, for passages that hold any."""
        counts_by_passage: dict[int, dict[str, int]] = {}
        for word, offsets in hits.items():
            for offset in offsets:
                counts = counts_by_passage.setdefault(bisect.bisect_right(self._bounds, offset) - 1, {})
                counts[word] = counts.get(word, 0) + 1
        return counts_by_passage

    def ranked(self, counts: Mapping[int, Mapping[str, int]], weights: Mapping[str, float]) -> list[int]:
        """Return the passages that hold words of the question, best first: the weight of these words, and half of it
        again if they are in the passage's name.

        Args:
            counts: as returned by `counts`.
            weights: weight of each word.
        """

        def worth(passage: int) -> float:
            named = sum(weights[word] for word in counts[passage] if word in self.words[passage])
            return sum(weights[word] for word in counts[passage]) + 0.5 * named

        return sorted(counts, key=lambda passage: -worth(passage))

    def span(self, passage: int) -> tuple[int, int]:
        """Return first and last line of a passage, from 1."""
        start = self._bounds[passage]
        end = self._bounds[passage + 1] if passage + 1 < len(self._bounds) else len(self.text)
        body = self.text[start:end].rstrip()
        first = self.line(start)
        return first, first + body.count("\n")

    def line(self, offset: int) -> int:
        """Return the line of an offset, from 1."""
        return bisect.bisect_left(self._lines, offset) + 1

    def passage_of(self, line: int) -> int:
        """Return the passage that holds a line: the innermost, which begins last."""
        offset = self._lines[line - 2] + 1 if line > 1 else 0
        return bisect.bisect_right(self._bounds, offset) - 1

    def passage_text(self, passage: int) -> str:
        """Return the text of a passage."""
        end = self._bounds[passage + 1] if passage + 1 < len(self._bounds) else len(self.text)
        return self.text[self._bounds[passage] : end]


def prepare_vectors(files: Iterable[ReadFile], meaning: Meaning) -> None:
    """Make the vectors of several files together, which is faster."""
    missing = [file for file in files if file._vectors is None or file._vectors[0] is not meaning]
    if missing:
        vectors = meaning.groups([words for file in missing for words in file.words], {})
        ends = np.cumsum([len(file.words) for file in missing])
        for file, of_file in zip(missing, np.split(vectors, ends[:-1]), strict=True):
            file._vectors = meaning, of_file


def rule_out(files: Iterable[ReadFile], names: Sequence[str]) -> None:
    """Note which names do not occur in files, to speed up `mentions`: some four characters of theirs are not there."""
    names = [name for name in names if name.isascii() and len(name) >= _FOUR]
    if not names:
        return
    grams_N = [_grams_of(name.encode()) for name in names]
    starts_N = np.cumsum([0, *map(len, grams_N[:-1])])
    grams = np.concatenate(grams_N)
    for file in files:
        if sum(name not in file._mentioned for name in names) < WORTH_RULING_OUT:
            continue
        _make_room(file._mentioned)
        is_held = np.zeros(1 << _GRAM_BITS, bool)
        is_held[_grams_of(file.lower.encode("ascii", "replace"))] = True
        is_possible_N = np.logical_and.reduceat(is_held[grams], starts_N)
        file._mentioned.update((names[i], False) for i in np.flatnonzero(~is_possible_N).tolist())


def _grams_of(data: bytes) -> NDArray[np.uint32]:
    """Return a small number for each four characters that follow each other. Few of these have the same number."""
    size = max(len(data) - _FOUR + 1, 0)
    grams = np.ndarray((size,), np.dtype("<u4"), data, strides=(1,))
    numbers: NDArray[np.uint32] = grams * np.uint32(2654435761) >> np.uint32(32 - _GRAM_BITS)  # Knuth's hash
    return numbers


def _lower(text: str) -> str:
    """Return a text in lower case, character by character, so that offsets stay the same."""
    # `str.lower` does the same, and much faster, except for two letters.
    if "İ" not in text and "Σ" not in text:
        return text.lower()
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= MOST_REMEMBERED:
        remembered.clear()


@lru_cache(maxsize=1 << 13)
def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a passage's name. Files define many of the same names."""
    return tuple(words_of(name) if name.isalnum() else words(name))


def _line_ends(text: str) -> list[int]:
    """Return the offsets of the ends of lines. Faster than a regular expression."""
    lines: list[int] = np.flatnonzero(_characters(text) == ord("\n")).tolist()
    return lines


def _characters(text: str) -> NDArray[np.uint8] | NDArray[np.uint32]:
    """Return the numbers of the characters."""
    if text.isascii():
        return np.frombuffer(text.encode(), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def _flags(text: str, first: str, of_others: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Mark characters: the 26 of ASCII from `first` on, and others for which `of_others` holds."""
    characters = _characters(text)
    flags: NDArray[np.bool_] = characters - ord(first) < 26  # noqa: PLR2004  smaller numbers wrap around
    if characters.dtype != np.uint8:
        others = np.flatnonzero(characters > 127)  # noqa: PLR2004
        values, indices = np.unique(characters[others], return_inverse=True)
        flags[others] = np.array([of_others(chr(value)) for value in values.tolist()], bool)[indices]
    return flags


class _Prefix(NamedTuple):
    """Beginning that all forms of a word share: "retr" for "retry" and "retries".

    Attributes:
        text: the prefix.
        is_plain: it consists of ASCII letters and digits.
        gram: its first eight characters as a number; None if `_Parts` cannot find it.
        mask: the bits of that number.
    """

    text: str
    is_plain: bool
    gram: np.uint64 | None
    mask: np.uint64


@lru_cache(maxsize=1 << 12)
def _shared_prefix(word: str, form: str) -> _Prefix:
    count = 0
    for letter, form_letter in zip(word, form, strict=False):
        if letter != form_letter:
            break
        count += 1
    prefix = word[: max(count, min(3, len(word)))]
    if prefix.endswith("y") and len(prefix) > 3:
        prefix = prefix[:-1]
    is_plain = prefix.isascii() and prefix.isalnum()
    # `_Parts` knows no overlaps, and a number may begin within a part.
    overlaps = any(prefix.startswith(prefix[start:]) for start in range(1, len(prefix)))
    size = min(len(prefix), _GRAM)
    gram = np.uint64(int.from_bytes(prefix[:size].encode(), "little")) if is_plain else None
    is_simple = is_plain and not overlaps and not prefix.isdigit()
    return _Prefix(prefix, is_plain, gram if is_simple else None, np.uint64((1 << 8 * size) - 1))


class _Parts(NamedTuple):
    """Parts of identifiers that begin with a letter or digit of ASCII.

    Attributes:
        lower: the text in lower case.
        starts: offsets at which parts begin, (P,).
        grams: the first eight characters of each, as a number, (P,). Characters beyond ASCII are question marks.
    """

    lower: str
    starts: NDArray[np.intp]
    grams: NDArray[np.uint64]

    def find(self, prefix: _Prefix) -> list[int]:
        """Return the offsets of the parts that begin with a prefix."""
        starts: list[int] = self.starts[self.grams & prefix.mask == prefix.gram].tolist()
        if len(prefix.text) > _GRAM:
            starts = [start for start in starts if self.lower.startswith(prefix.text, start)]
        return starts


def _parts_of(text: str, lower: str) -> _Parts:
    """Find the parts of identifiers, all at once: much faster than to search the text for each word."""
    data = lower.encode("ascii", "replace") + bytes(_GRAM)
    as_bytes = np.frombuffer(data, np.uint8, len(lower))
    is_letter, is_capital = _flags(lower, "a", _joins), _flags(text, "A", str.isupper)
    is_start = (as_bytes - ord("a") < 26) | (as_bytes - ord("0") < 10)  # noqa: PLR2004
    # A part begins after a character that is not a letter, or with a capital: `maxRetries`.
    is_start[1:] &= ~is_letter[:-1] | (is_capital[1:] & ~is_capital[:-1])
    starts = is_start.nonzero()[0]
    grams: NDArray[np.uint64] = np.ndarray((len(lower),), np.dtype("<u8"), data, strides=(1,))[starts]
    return _Parts(lower, starts, grams)


def _joins(character: str) -> bool:
    """Return whether a letter makes one word with a letter of ASCII that follows."""
    return character.isalpha() and not is_unspaced(character)


def _divided(path: str, text: str, line_ends: Sequence[int]) -> tuple[list[str], list[int]]:
    """Return the names of the passages, and the offsets at which they begin."""
    names, bounds = [""], [0]
    syntax = syntax_of(path)
    data = text.encode("utf-8", "replace") if not text.isascii() else text.encode()
    exact = len(data) == len(text)
    if syntax.definitions is not None and exact:
        for match in syntax.definitions.finditer(b"\n" + data):
            name = next(filter(None, match.groups()), b"").decode("utf-8", "replace").strip()
            names.append(name)
            bounds.append(match.start())
            if len(names) == MOST_PASSAGES:
                break
    elif syntax.definitions is not None:
        offset = 0  # offsets of bytes differ from those of characters
        for line in data.split(b"\n"):
            match_ = syntax.definitions.match(b"\n" + line)
            if match_ is not None and len(names) < MOST_PASSAGES:
                names.append(next(filter(None, match_.groups()), b"").decode("utf-8", "replace").strip())
                bounds.append(offset)
            offset += len(line.decode("utf-8", "replace")) + 1
    return _cut_long(line_ends, names, bounds, len(text))


def _cut_long(
    line_ends: Sequence[int], names: Sequence[str], bounds: Sequence[int], size: int
) -> tuple[list[str], list[int]]:
    """Divide passages that are too long. Files without definitions are divided into paragraphs."""
    longest = MOST_LINES if len(names) > 1 else PARAGRAPH_LINES
    cut_names, cut_bounds = list[str](), list[int]()
    for name, start, end in zip(names, bounds, [*bounds[1:], size], strict=True):
        cut_names.append(name)
        cut_bounds.append(start)
        if end - start < longest * 10:
            continue
        first, last = bisect.bisect_right(line_ends, start), bisect.bisect_left(line_ends, end - 1)
        room = max(2 * MOST_PASSAGES - len(cut_names), 0)
        further = [line_ends[line] + 1 for line in range(first + longest - 1, last, longest)][:room]
        cut_names += [""] * len(further)
        cut_bounds += further
    return cut_names, cut_bounds
