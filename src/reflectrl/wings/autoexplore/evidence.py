"""What speaks for a file as the answer to a question: which share of the question its parts cover, and where best.

BM25 gives one number per file. What tells the file that *defines* a thing from those that mention it is where the
words stand: in the path, in the names of what is defined, in docstrings, or all together in one definition. A share is
that of the question's words, each weighing as much as it is rare in the repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from reflectrl.wings.autoexplore.outline import Definition, about, outline
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import CONTENT_BYTES
from reflectrl.wings.autoexplore.texts import Text
from reflectrl.wings.autoexplore.words import count_words, distinct_words

PASSAGE_LINES = 80
"""A definition's words are looked for in so many lines from its beginning."""
ENOUGH = 3
"""So many occurrences of a word in a file count as "often"."""
PATH, NAMES, DOCS, ANYWHERE, OFTEN = (1 << place for place in range(5))
"""Where a word stands in a file: in its path; in the names of what is defined; in docstrings and in what the file says
of itself; in text or path; several times in the text. A word's places are their sum."""

Shares = tuple[float, float, float, float, float, float]
"""From 0 to 1, how much of a question is covered by the words in each of these places, in their order, and by the one
definition that covers most."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The words of a file by where they stand, each without its ending (`words.py`)."""

    about: str
    """One line, perhaps ""."""
    definitions: tuple[Definition, ...]
    places: Mapping[str, int]
    """Word → the sum of the places where it stands."""
    holders: Mapping[str, tuple[int, ...]]
    """Word → numbers of the definitions in whose lines, name or parent it stands."""


def profile(path: str, text: str) -> Profile:
    """Take a file apart."""
    definitions, said = outline(path, text), about(path, text)
    places = {word: ANYWHERE | OFTEN * (times >= ENOUGH) for word, times in count_words(text).items()}
    parts = {
        PATH | ANYWHERE: path,
        NAMES: " ".join([definition.name for definition in definitions]),
        DOCS: " ".join([said, *(definition.doc for definition in definitions)]),
    }
    for place, part in parts.items():
        for word in distinct_words(part):
            places[word] = places.get(word, 0) | place
    # The words of a definition are those from its first line to the next definition.
    holders: dict[str, list[int]] = {}
    lines = text.split("\n")
    ends = [*(definition.line - 1 for definition in definitions[1:]), len(lines)]
    for number, (definition, end) in enumerate(zip(definitions, ends, strict=False)):
        start = definition.line - 1
        own = lines[start : min(max(end, start + 1), start + PASSAGE_LINES)]
        for word in distinct_words("\n".join([definition.parent, definition.name, *own])):
            holders.setdefault(word, []).append(number)
    return Profile(said, definitions, places, {word: tuple(numbers) for word, numbers in holders.items()})


def weigh(found: Profile, weights: Mapping[str, float]) -> Shares:
    """Hold a file against a question.

    Args:
        weights: what each word of the question is worth (its rarity); they need not sum to anything.
    """
    total = sum(weights.values()) or 1.0
    standing = [(weight, found.places[word]) for word, weight in weights.items() if word in found.places]
    path, names, docs, anywhere, often = (
        sum([weight for weight, places in standing if places & place]) / total
        for place in (PATH, NAMES, DOCS, ANYWHERE, OFTEN)
    )
    sums = [0.0] * len(found.definitions)
    for word, weight in weights.items():
        own = weight / total
        for number in found.holders.get(word, ()):
            sums[number] += own
    return path, names, docs, anywhere, often, max(sums, default=0.0)


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
