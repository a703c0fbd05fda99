"""Passages of a file that was read: definitions, headings or paragraphs, and the words of a question that they hold."""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence

from reflectrl.wings.autoexplore.locate.segments import identifier
from reflectrl.wings.autoexplore.locate.syntax import syntax_of
from reflectrl.wings.autoexplore.words import stem, words_of

MOST_LINES = 60
"""Longest passage, in lines. The rest of a longer one is divided into passages without a name."""
PARAGRAPH_LINES = 25
"""Length of the passages of a file without definitions."""
MOST_PASSAGES = 400
_LETTERS = re.compile(r"[A-Za-z0-9]+")


class ReadFile:
    """Text of a file and its passages. It is kept between questions.

    Args:
        path: path of the file.
        text: text in UTF-8.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.lower = text.lower() if text.isascii() else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
        self.names, self._bounds = _divided(path, text)
        self.words = [tuple(words_of(name) if name.isalnum() else _split(name)) for name in self.names]
        self.identifiers = {identifier(name) for name in self.names}
        self._lines: list[int] | None = None

    def hits(self, forms: Mapping[str, str]) -> dict[str, list[int]]:
        """Return word → offsets at which it occurs, for the words of a question that occur."""
        hits: dict[str, list[int]] = {}
        for word, form in forms.items():
            offsets = self._offsets(word, form)
            if offsets:
                hits[word] = offsets
        return hits

    def _offsets(self, word: str, form: str) -> list[int]:
        prefix = _shared_prefix(word, form)
        lower, text, offsets, start = self.lower, self.text, list[int](), 0
        while (start := lower.find(prefix, start)) >= 0:
            end = start + len(prefix)
            before = lower[start - 1 : start]
            # A part of an identifier begins after a character that is not a letter, or with a capital: `maxRetries`.
            if not before.isalpha() or (text[start].isupper() and not (text[start - 1].isupper())) or prefix.isdigit():
                match = _LETTERS.match(lower, start)
                run_end = match.end() if match else end
                part_end = end
                while part_end < run_end and not (text[part_end].isupper() or text[part_end].isdigit()):
                    part_end += 1
                if stem(lower[start:part_end]) == word:
                    offsets.append(start)
                    if len(offsets) == 200:
                        break
            start = end
        return offsets

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

    def held(self, hits: Mapping[str, Sequence[int]]) -> dict[int, set[str]]:
        """Return index of a passage → words of the question in it, for passages that hold any."""
        words_by_passage: dict[int, set[str]] = {}
        for word, offsets in hits.items():
            for offset in offsets:
                words_by_passage.setdefault(bisect.bisect_right(self._bounds, offset) - 1, set()).add(word)
        return words_by_passage

    def span(self, passage: int) -> tuple[int, int]:
        """Return first and last line of a passage, from 1."""
        start = self._bounds[passage]
        end = self._bounds[passage + 1] if passage + 1 < len(self._bounds) else len(self.text)
        body = self.text[start:end].rstrip()
        first = self.line(start)
        return first, first + body.count("\n")

    def line(self, offset: int) -> int:
        """Return the line of an offset, from 1."""
        if self._lines is None:
            self._lines = [match.start() for match in re.finditer("\n", self.text)]
        return bisect.bisect_left(self._lines, offset) + 1

    def passage_text(self, passage: int) -> str:
        """Return the text of a passage."""
        end = self._bounds[passage + 1] if passage + 1 < len(self._bounds) else len(self.text)
        return self.text[self._bounds[passage] : end]


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


def _divided(path: str, text: str) -> tuple[list[str], list[int]]:
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
    return _cut_long(text, names, bounds)


def _cut_long(text: str, names: list[str], bounds: list[int]) -> tuple[list[str], list[int]]:
    """Divide passages that are too long. Files without definitions are divided into paragraphs."""
    longest = MOST_LINES if len(names) > 1 else PARAGRAPH_LINES
    cut_names, cut_bounds = list[str](), list[int]()
    for name, start, end in zip(names, bounds, [*bounds[1:], len(text)], strict=True):
        cut_names.append(name)
        cut_bounds.append(start)
        if end - start < longest * 10:
            continue
        offset, lines = start, 0
        while len(cut_names) < 2 * MOST_PASSAGES and 0 <= (offset := text.find("\n", offset + 1)) < end - 1:
            lines += 1
            if lines % longest == 0:
                cut_names.append("")
                cut_bounds.append(offset + 1)
    return cut_names, cut_bounds
