"""Parse a question of `locate`: its words, the identifiers that it names, and the paths that it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from reflectrl.wings.autoexplore.locate.segments import identifier
from reflectrl.wings.autoexplore.words import spoken

MOST_WORDS = 60
"""Largest number of distinct words that are searched for. A long bug report names its files early."""
_IDENTIFIER = re.compile(
    r"`([^`\n]{2,80})`"
    r"|\b([A-Za-z]\w*(?:(?:\.|::|->)\w+)+)"  # a.b.c
    r"|\b([A-Za-z]\w*_\w+|_+[A-Za-z]\w+|[a-z]+[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|[A-Z]{2,}[a-z]\w*)\b"
)
_NAME = re.compile(r"[A-Za-z_]\w{2,}")
_PATH = re.compile(r"(?<![\w./-])[\w./-]*\w\.[A-Za-z]\w{0,5}\b|(?<![\w.-])[\w.-]++(?:/[\w.-]++)++")


@dataclass(frozen=True)
class Inquiry:
    """Parts of a question.

    Attributes:
        text: the question.
        forms: stemmed word → the form in which it first occurs.
        identifiers: joined identifier (see `identifier`) → its form, for names that look like code.
        paths: names of files or paths in the question, in lower case.
        pairs: words that follow each other in the question.
    """

    text: str
    forms: dict[str, str]
    identifiers: dict[str, str]
    paths: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Inquiry:
        """Parse a question."""
        forms: dict[str, str] = {}
        for form, word in spoken(text):
            if len(forms) < MOST_WORDS:
                forms.setdefault(word, form)
        names: dict[str, str] = {}
        for match in _IDENTIFIER.finditer(text):
            for name in _NAME.findall(next(filter(None, match.groups()))):
                names.setdefault(identifier(name), name)
        paths = dict.fromkeys(match[0].strip("./").lower() for match in _PATH.finditer(text))
        order = [word for _, word in spoken(text) if word in forms]
        pairs = dict.fromkeys((first, second) for first, second in pairwise(order) if first != second)
        return cls(text, forms, names, tuple(path for path in paths if len(path) > 3), tuple(pairs))
