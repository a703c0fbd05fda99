"""Excerpts: what a reader sees of a file: path, definitions, the files that name it, and the lines that fit best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectrl.wings.autoexplore.locate.grounds import file_stem
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.passages import ReadFile

PASSAGES, LINES = 3, 4
"""Number of passages that are shown, and of lines of each besides its definition."""
LINE_CHARACTERS, NAME_CHARACTERS = 120, 400
NAMING_FILES = 3
"""Number of files that are shown to name this one."""


@dataclass(frozen=True)
class Excerpt:
    """Part of a file that a reader sees.

    Attributes:
        path: path of the file.
        names: names of its definitions.
        naming: paths of other candidates that name it, as callers do.
        lines: lines of the passages that fit the question.
    """

    path: str
    names: str = ""
    naming: str = ""
    lines: str = ""


def excerpt(file: ReadFile, inquiry: Inquiry, weights: Mapping[str, float], others: Sequence[ReadFile]) -> Excerpt:
    """Return the excerpt of a file.

    Args:
        file: file that was read.
        inquiry: parts of the question.
        weights: weight of each word of the question.
        others: the other candidates that were read.
    """
    names = ", ".join(dict.fromkeys(filter(None, file.names)))[:NAME_CHARACTERS]
    stem = file_stem(file.path)
    naming = [other.path for other in others if stem and other.path != file.path and other.mentions(stem)]
    return Excerpt(file.path, names, ", ".join(naming[:NAMING_FILES]), _lines(file, inquiry, weights))


def _lines(file: ReadFile, inquiry: Inquiry, weights: Mapping[str, float]) -> str:
    """Return, of the passages that fit best, the definition's line and the lines with the weightiest words.

    An identifier that the question names weighs as much as its two weightiest words.
    """
    hits = file.hits({word: inquiry.forms[word] for word in weights})
    identifiers = {joined: file.occurrences(name) for joined, name in inquiry.identifiers.items()}
    hits |= {joined: offsets for joined, offsets in identifiers.items() if offsets}
    weights = {**weights, **dict.fromkeys(identifiers, 2 * max(weights.values(), default=1.0))}
    worth: dict[int, float] = {}
    for word, offsets in hits.items():
        for line in {file.line(offset) for offset in offsets}:
            worth[line] = worth.get(line, 0.0) + weights[word]
    text_lines, shown = file.text.split("\n"), list[str]()
    for passage in sorted(file.ranked(file.counts(hits), weights)[:PASSAGES]) or [0]:
        start, end = file.span(passage)
        best = sorted((line for line in worth if start <= line <= end), key=lambda line: (-worth[line], line))[:LINES]
        lines = sorted({start, *best} if file.names[passage] or not best else best)
        shown.append("\n".join(text_lines[line - 1].strip()[:LINE_CHARACTERS] for line in lines).strip())
    return "\n...\n".join(filter(None, shown))
