"""Search as a player uses it: files ranked for words of a question, each with a line that says what speaks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Any

from reflectrl.wings.autoexplore.legible import legible
from reflectrl.wings.autoexplore.outline import Definition, about, outline
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import Search
from reflectrl.wings.autoexplore.view import View
from reflectrl.wings.autoexplore.words import count_words, distinct_words, spoken

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
        return profile(path, legible(self._repository, path).text)


DEEPEST = 50
"""Files beyond this rank of BM25 are not shown by a search."""
WEIGHED = 30
"""So many of the first are held against the question part by part, and ordered by that."""
KEPT = 4096
"""So many questions' rankings are remembered."""
GROUNDS = ("words", "path", "names", "notes", "anywhere", "often", "one place")
"""What may speak for a file: BM25 as a share of the best file's, and the shares of the question that are covered by its
path, by the names that it defines, by what it says of itself, by all of it, by what it says often, and by the one
definition that covers most."""
WEIGHTS = (1.0, -0.1, 0.6, 0.4, -0.35, -0.4, 0.75)
"""How much each of them counts where files are ordered: fitted to 60 questions about each training repository, as
multiples of the largest (`benchmarks/autoexplore_weights.py`). Grounds overlap: what stands in names or in one
definition also stands anywhere, so the latter speaks against a file where the former are equal."""


class Finder:
    """The search of one repository, shared by all episodes in it; what it found for a question is remembered."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.profiles = Profiles(repository)
        self.search = Search(repository)
        """BM25, whose index is built when it is first needed."""
        self._bm25 = lru_cache(maxsize=KEPT)(self._searched)
        self._order = lru_cache(maxsize=KEPT)(self._ordered)
        self._shares = lru_cache(maxsize=8 * KEPT)(self._weigh)
        self.words = lru_cache(maxsize=KEPT)(self._words)
        self._weights = lru_cache(maxsize=KEPT)(self._weighed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Finder, (self.repository,)  # a copy, in another process say, remembers nothing

    def ranked(self, question: str, words: str, view: View) -> tuple[str, ...]:
        """Paths that a search finds, best first: for one word of the question, or for all of it where `words` is ""."""
        found = self._order(question, words)
        return tuple(path for path in found if view.shows(path)) if view.left_out else found

    def promise(self, path: str, question: str) -> float:
        """What speaks for a file in one number: the weighted sum of its grounds."""
        return sum(map(mul, WEIGHTS, self.grounds(path, question)))

    def grounds(self, path: str, question: str) -> tuple[float, ...]:
        """What speaks for a file, each from 0 to 1, in the order of `GROUNDS`."""
        return (self.score(path, question), *self._shares(path, question))

    def first(self, question: str) -> tuple[str, ...]:
        """The files that are ordered by what speaks for them: the first by BM25."""
        return tuple(self._bm25(question))[:WEIGHED]

    def score(self, path: str, question: str) -> float:
        """BM25 of a file as a share of that of the best one; 0 for files that are not among the first."""
        return self._bm25(question).get(path, 0.0)

    def _searched(self, words: str) -> dict[str, float]:
        """The first files by BM25, best first, with their scores as shares of the best one's."""
        if not spoken(words):
            return {}
        found = self.search.rank(words, DEEPEST)
        return {path: score / found[0][1] for path, score in found}

    def _ordered(self, question: str, words: str) -> tuple[str, ...]:
        found = list(self._bm25(words or question))
        first = sorted(found[:WEIGHED], key=lambda path: -self.promise(path, question))  # equals stay in BM25's order
        return (*first, *found[WEIGHED:])

    def _words(self, question: str) -> tuple[str, ...]:
        """The words of a question that occur in the repository, the rarest first, as the question has them."""
        weights, forms = self._weights(question)
        known = [word for word in weights if self.search.occurs(word)]
        return tuple(forms[word] for word in sorted(known, key=lambda word: (-weights[word], word)))

    def _weighed(self, question: str) -> tuple[dict[str, float], dict[str, str]]:
        """What each word of a question is worth, and the form in which it first occurs."""
        forms = {word: form for form, word in reversed(spoken(question))}
        return {word: self.search.rarity(word) for word in forms}, forms

    def _weigh(self, path: str, question: str) -> Shares:
        return weigh(self.profiles.of(path), self._weights(question)[0])
