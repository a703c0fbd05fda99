"""What speaks for a file as the answer to a question: which share of the question its parts cover, and where best.

BM25 gives one number per file. What tells the file that *defines* a thing from those that mention it is where the
words stand: in the path, in the names of what is defined, in docstrings, or all together in one definition. A share is
that of the question's words, each weighing as much as it is rare in the repository.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from reflectrl.envs.autoexplore.outline import Definition, about, outline
from reflectrl.envs.autoexplore.repository import Repository
from reflectrl.envs.autoexplore.search import CONTENT_BYTES
from reflectrl.envs.autoexplore.texts import Text
from reflectrl.envs.autoexplore.words import words

PASSAGE_LINES = 80
"""A definition's words are looked for in so many lines from its beginning."""
ENOUGH = 3
"""So many occurrences of a word in a file count as "often"."""


@dataclass(frozen=True)
class Passage:
    """A definition and the words of its lines, its name and its documentation included."""

    definition: Definition
    words: frozenset[str]


@dataclass(frozen=True)
class Profile:
    """The words of a file by where they stand, each without its ending (`words.py`)."""

    about: str
    """One line, perhaps ""."""
    path: frozenset[str]
    names: frozenset[str]
    """In the names of what is defined."""
    docs: frozenset[str]
    """In docstrings and in what the file says of itself."""
    text: Mapping[str, int]
    """Anywhere in it, and how often."""
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class Evidence:
    """Shares from 0 to 1 of a question that parts of a file cover."""

    path: float
    names: float
    docs: float
    text: float
    often: float
    """By words that occur several times."""
    passage: float
    """By the definition that covers most."""
    best: Definition | None
    """That definition."""
    shared: tuple[str, ...]
    """Words of the question in it (in the whole file if there is none), the rarest first, as the question has them."""


def profile(path: str, text: str) -> Profile:
    """Take a file apart."""
    definitions = outline(path, text)
    lines = text.split("\n")
    starts = [definition.line for definition in definitions]
    said = about(path, text)
    return Profile(
        said,
        frozenset(words(path)),
        frozenset(words(" ".join(definition.name for definition in definitions))),
        frozenset(words(" ".join([said, *(definition.doc for definition in definitions)]))),
        Counter(words(text)),
        tuple(Passage(one, _words_of(one, lines, starts)) for one in definitions),
    )


def _words_of(definition: Definition, lines: list[str], starts: list[int]) -> frozenset[str]:
    """The words from a definition's first line to the next definition."""
    following = bisect.bisect_right(starts, definition.line)
    end = starts[following] - 1 if following < len(starts) else len(lines)
    own = lines[definition.line - 1 : min(end, definition.line - 1 + PASSAGE_LINES)]
    return frozenset(words("\n".join([definition.parent, definition.name, *own])))


def weigh(found: Profile, weights: Mapping[str, float], forms: Mapping[str, str]) -> Evidence:
    """Hold a file against a question.

    Args:
        weights: what each word of the question is worth (its rarity); they need not sum to anything.
        forms: each word as the question has it.
    """
    total = sum(weights.values()) or 1.0

    def share(part: Iterable[str]) -> float:
        return sum(weights[word] for word in sorted(weights.keys() & set(part))) / total

    passage, best = max(
        ((share(one.words), one) for one in found.passages), key=lambda pair: pair[0], default=(0.0, None)
    )
    where: Iterable[str] = best.words if best is not None and passage else found.text.keys() | found.path
    shared = sorted(weights.keys() & set(where), key=lambda word: (-weights[word], word))
    return Evidence(
        share(found.path),
        share(found.names),
        share(found.docs),
        share(found.text.keys() | found.path),
        share(word for word in weights if found.text.get(word, 0) >= ENOUGH),
        passage,
        best.definition if best is not None and passage else None,
        tuple(forms[word] for word in shared),
    )


class Profiles:
    """The profiles of a repository's files, each made when it is first asked for, and kept."""

    def __init__(self, repository: Repository, most: int = 4096) -> None:
        self._repository = repository
        self._of = lru_cache(maxsize=most)(self._make)

    def of(self, path: str) -> Profile:
        """The profile of a file; one of its path alone where it cannot be read."""
        return self._of(path)

    def _make(self, path: str) -> Profile:
        read = self._repository.read(path, CONTENT_BYTES)
        return profile(path, read.text if isinstance(read, Text) else "")
