"""Passages of a file that was read: definitions, headings or paragraphs, and the words of a question that they hold."""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.meaning import Meaning
from reflectrl.wings.autoexplore.locate.syntax import syntax_of
from reflectrl.wings.autoexplore.words import stem, words_of

MOST_LINES = 60
"""Longest passage, in lines. The rest of a longer one is divided into passages without a name."""
PARAGRAPH_LINES = 25
"""Length of the passages of a file without definitions."""
MOST_PASSAGES = 400
MOST_REMEMBERED = 512
"""Number of words whose occurrences in a file are remembered."""
_SMALL = re.compile(r"[a-z]*")


class ReadFile:
    """Text of a file and its passages. It is kept between questions.

    Args:
        path: path of the file.
        text: text in UTF-8.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.lower = _lower(text)
        self._lines = [match.start() for match in re.finditer("\n", text)]
        self.names, self._bounds = _divided(path, text, self._lines)
        self.words = [tuple(words_of(name) if name.isalnum() else _split(name)) for name in self.names]
        self._offsets_of: dict[tuple[str, str], list[int]] = {}
        self._mentioned: dict[str, bool] = {}
        self._vectors: tuple[Meaning, NDArray[np.float32]] | None = None

    def hits(self, forms: Mapping[str, str]) -> dict[str, list[int]]:
        """Return word → offsets at which it occurs, for the words of a question that occur."""
        hits: dict[str, list[int]] = {}
        for word, form in forms.items():
            offsets = self._offsets_of.get((word, form))
            if offsets is None:
                _make_room(self._offsets_of)
                offsets = self._offsets_of[word, form] = self._offsets(word, form)
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

    def _offsets(self, word: str, form: str) -> list[int]:
        prefix = _shared_prefix(word, form)
        lower, text, offsets, start = self.lower, self.text, list[int](), 0
        length, is_number, is_plain = len(prefix), prefix.isdigit(), prefix.isascii() and prefix.isalnum()
        while (start := lower.find(prefix, start)) >= 0:
            end = start + length
            before = lower[start - 1 : start]
            # A part of an identifier begins after a character that is not a letter, or with a capital: `maxRetries`.
            if is_number or not before.isalpha() or (text[start].isupper() and not text[start - 1].isupper()):
                # It ends before the next capital or digit.
                rest = _SMALL.match(text, end) if is_plain else None
                part_end = rest.end() if rest is not None else end
                if stem(lower[start:part_end]) == word:
                    offsets.append(start)
                    if len(offsets) == 200:
                        break
            start = end
        return offsets

    def vectors(self, meaning: Meaning) -> NDArray[np.float32]:
        """Return the vectors of the passages' names, (passages, size)."""
        if self._vectors is None or self._vectors[0] is not meaning:
            self._vectors = meaning, meaning.groups(self.words, {})
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

    def passage_text(self, passage: int) -> str:
        """Return the text of a passage."""
        end = self._bounds[passage + 1] if passage + 1 < len(self._bounds) else len(self.text)
        return self.text[self._bounds[passage] : end]


def _lower(text: str) -> str:
    """Return a text in lower case, character by character, so that offsets stay the same."""
    # `str.lower` does the same, and much faster, except for two letters.
    if "İ" not in text and "Σ" not in text:
        return text.lower()
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= MOST_REMEMBERED:
        remembered.clear()


def _split(name: str) -> list[str]:
    return [word for run in re.findall(r"[^\W_]+", name) for word in words_of(run)]


def _shared_prefix(word: str, form: str) -> str:
    """Return the beginning that all forms of a word share: "retr" for "retry" and "retries"."""
    count = 0
    for letter, form_letter in zip(word, form, strict=False):
        if letter != form_letter:
            break
        count += 1
    prefix = word[: max(count, min(3, len(word)))]
    return prefix[:-1] if prefix.endswith("y") and len(prefix) > 3 else prefix


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
