"""Parse a question of `locate`: its words, the identifiers that it names, and the paths that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from reflectrl.wings.autoexplore.locate.segments import identifier
from reflectrl.wings.autoexplore.words import composed, spaced, spoken

MOST_WORDS = 60
"""Largest number of distinct words that are searched for. A long bug report names its files early."""
_IDENTIFIER = re.compile(
    r"`([^`\n]{2,80})`"
    r"|\b([A-Za-z]\w*(?:(?:\.|::|->)\w+)+)"  # a.b.c
    r"|\b([A-Za-z]\w*_\w+|_+[A-Za-z]\w+|[a-z]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|[A-Z]{2,}[a-z]\w*)\b"
)
_NAME = re.compile(r"[A-Za-z_]\w{2,}")
_PATH = re.compile(r"(?<![\w./-])[\w./-]*\w\.[A-Za-z]\w{0,5}\b|(?<![\w.-])[\w.-]++(?:/[\w.-]++)++")
_LINE = re.compile(r"(?::|#L|\(|\"?,? line )(\d{1,7})(?!\w)")
"""Line of a file, right behind its path: a.py:12, a.py#L12, a.cs(12), "a.py", line 12."""


@dataclass(frozen=True)
class Inquiry:
    """Parts of a question.

    Attributes:
        text: the question.
        forms: stemmed word → the form in which it first occurs.
        identifiers: joined identifier (see `identifier`) → its form, for names that look like code.
        paths: names of files or paths in the question, in lower case.
        lines: path → number of a line that the question names with it.
        pairs: words that follow each other in the question.
    """

    text: str
    forms: dict[str, str]
    identifiers: dict[str, str]
    paths: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Inquiry:
        """Parse a question."""
        text = composed(text)
        forms: dict[str, str] = {}
        for form, word in spoken(text):
            if len(forms) < MOST_WORDS:
                forms.setdefault(word, form)
        names: dict[str, str] = {}
        text_of_code = spaced(text)
        for match in _IDENTIFIER.finditer(text_of_code):
            for name in _NAME.findall(next(filter(None, match.groups()))):
                names.setdefault(identifier(name), name)
        lines: dict[str, int] = {}
        paths = dict[str, None]()
        for each in (text, text_of_code):
            for match in _PATH.finditer(each):
                path = match[0].strip("./").lower()
                paths[path] = None
                line = _LINE.match(each, match.end())
                if line is not None:
                    lines.setdefault(path, int(line[1]))
        order = [word for _, word in spoken(text) if word in forms]
        pairs = dict.fromkeys((first, second) for first, second in pairwise(order) if first != second)
        return cls(text, forms, names, tuple(path for path in paths if len(path) > 3), tuple(pairs), lines)

    def line_in(self, path: str) -> int | None:
        """Return the line that the question names of a file; None if it names none."""
        end = f"/{composed(path).lower()}"
        return next((line for name, line in self.lines.items() if end.endswith(f"/{name}")), None)
