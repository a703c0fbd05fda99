"""Search engine of the players: BM25, reranked by the parts of a file that match the question."""

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
"""Number of lines, from its first, in which the words of a definition are collected."""
ENOUGH = 3
"""Smallest number of occurrences of a word in a file that count as "often"."""
PATH, NAMES, DOCS, ANYWHERE, OFTEN = (1 << place for place in range(5))
"""Bit flags for the places of a word in a file: its path; the names of definitions; docstrings and the file's
description; text or path; at least `ENOUGH` times in the text. The places of a word are combined by OR."""

Shares = tuple[float, float, float, float, float, float]
"""Shares of a question, from 0 to 1, that are covered by the words in each of these places, in their order, and by the
best single definition."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Stemmed words of a file (`words.py`) and their places."""

    about: str
    """Description of the file in one line; "" if there is none."""
    definitions: tuple[Definition, ...]
    places: Mapping[str, int]
    """Word → bit flags of its places."""
    holders: Mapping[str, tuple[int, ...]]
    """Word → indices of the definitions that hold it in their lines, name or parent."""


def profile(path: str, text: str) -> Profile:
    """Compute the profile of a file."""
    definitions, description = outline(path, text), about(path, text)
    flags = {word: ANYWHERE | OFTEN * (times >= ENOUGH) for word, times in count_words(text).items()}
    parts = {
        PATH | ANYWHERE: path,
        NAMES: " ".join([definition.name for definition in definitions]),
        DOCS: " ".join([description, *(definition.doc for definition in definitions)]),
    }
    for flag, part in parts.items():
        for word in distinct_words(part):
            flags[word] = flags.get(word, 0) | flag
    # The words of a definition reach from its first line to the next definition.
    holders: dict[str, list[int]] = {}
    lines = text.split("\n")
    ends = [*(definition.line - 1 for definition in definitions[1:]), len(lines)]
    for index, (definition, end) in enumerate(zip(definitions, ends, strict=False)):
        start = definition.line - 1
        passage = lines[start : min(max(end, start + 1), start + PASSAGE_LINES)]
        for word in distinct_words("\n".join([definition.parent, definition.name, *passage])):
            holders.setdefault(word, []).append(index)
    return Profile(description, definitions, flags, {word: tuple(indices) for word, indices in holders.items()})


def weigh(profile: Profile, weights: Mapping[str, float]) -> Shares:
    """Return the shares of a question that a file's profile covers.

    Args:
        weights: word of the question → weight (rarity). They need not be normalized.
    """
    total = sum(weights.values()) or 1.0
    occurring = [(weight, profile.places[word]) for word, weight in weights.items() if word in profile.places]
    path, names, docs, anywhere, often = (
        sum([weight for weight, flags in occurring if flags & flag]) / total
        for flag in (PATH, NAMES, DOCS, ANYWHERE, OFTEN)
    )
    sums = [0.0] * len(profile.definitions)
    for word, weight in weights.items():
        share = weight / total
        for index in profile.holders.get(word, ()):
            sums[index] += share
    return path, names, docs, anywhere, often, max(sums, default=0.0)


class Profiles:
    """Profiles of a repository's files, computed on first use and cached."""

    def __init__(self, repository: Repository, most: int = 4096) -> None:
        self._repository = repository
        self._of = lru_cache(maxsize=most)(self._make)

    def of(self, path: str) -> Profile:
        """Return the profile of a file; if the file cannot be read, the profile of its path alone."""
        return self._of(path)

    def _make(self, path: str) -> Profile:
        return profile(path, legible(self._repository, path).text)


DEEPEST = 50
"""Largest number of files that a search finds, by BM25."""
WEIGHED = 30
"""Number of top files by BM25 that are reranked by `GROUNDS`."""
KEPT = 4096
"""Number of questions with cached rankings."""
GROUNDS = ("words", "path", "names", "notes", "anywhere", "often", "one place")
"""Names of the ranking features: BM25 relative to the best file, and the shares of the question that are covered by
the path, the names of definitions, the documentation, the whole file, its frequent words, and the best single
definition."""
WEIGHTS = (1.0, -0.1, 0.6, 0.4, -0.35, -0.4, 0.75)
"""Weights of the features, relative to the largest, fitted to 60 questions about each training repository
(`benchmarks/autoexplore_weights.py` of commit bc64836). Features overlap: a word in a name or definition also counts as
"anywhere". So the weight of "anywhere" is negative: at equal other features, matches outside of names and definitions
count against a file."""


class Finder:
    """Search engine of a repository, shared by all its episodes. Results are cached."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.profiles = Profiles(repository)
        self.search = Search(repository)
        """BM25 search; its index is built on first use."""
        self._bm25 = lru_cache(maxsize=KEPT)(self._searched)
        self._order = lru_cache(maxsize=KEPT)(self._ordered)
        self._shares = lru_cache(maxsize=8 * KEPT)(self._weigh)
        self.words = lru_cache(maxsize=KEPT)(self._words)
        self._weights = lru_cache(maxsize=KEPT)(self._weighed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Finder, (self.repository,)  # a copy (for another process) starts with empty caches

    def ranked(self, question: str, words: str, view: View) -> tuple[str, ...]:
        """Return the paths that a search for `words` finds, best first; "" searches for the whole question."""
        paths = self._order(question, words)
        return tuple(path for path in paths if view.shows(path)) if view.left_out else paths

    def promise(self, path: str, question: str) -> float:
        """Return the score of a file for a question: the weighted sum of its features."""
        return sum(map(mul, WEIGHTS, self.grounds(path, question)))

    def grounds(self, path: str, question: str) -> tuple[float, ...]:
        """Return the features of a file, each from 0 to 1, in the order of `GROUNDS`."""
        return (self.score(path, question), *self._shares(path, question))

    def first(self, question: str) -> tuple[str, ...]:
        """Return the files that are reranked: the top `WEIGHED` by BM25."""
        return tuple(self._bm25(question))[:WEIGHED]

    def score(self, path: str, question: str) -> float:
        """Return a file's BM25 divided by the best file's; 0 if the file is not among the top `DEEPEST`."""
        return self._bm25(question).get(path, 0.0)

    def _searched(self, words: str) -> dict[str, float]:
        """Return the top files by BM25, best first → score divided by the best score."""
        if not spoken(words):
            return {}
        ranking = self.search.rank(words, DEEPEST)
        return {path: score / ranking[0][1] for path, score in ranking}

    def _ordered(self, question: str, words: str) -> tuple[str, ...]:
        paths = list(self._bm25(words or question))
        reranked = sorted(paths[:WEIGHED], key=lambda path: -self.promise(path, question))  # ties keep BM25's order
        return (*reranked, *paths[WEIGHED:])

    def _words(self, question: str) -> tuple[str, ...]:
        """Return the words of a question that occur in the repository, rarest first, spelled as in the question."""
        weights, forms = self._weights(question)
        occurring = [word for word in weights if self.search.occurs(word)]
        return tuple(forms[word] for word in sorted(occurring, key=lambda word: (-weights[word], word)))

    def _weighed(self, question: str) -> tuple[dict[str, float], dict[str, str]]:
        """Return the weight of each word of a question, and the form in which the word first occurs."""
        forms = {word: form for form, word in reversed(spoken(question))}
        return {word: self.search.rarity(word) for word in forms}, forms

    def _weigh(self, path: str, question: str) -> Shares:
        return weigh(self.profiles.of(path), self._weights(question)[0])
