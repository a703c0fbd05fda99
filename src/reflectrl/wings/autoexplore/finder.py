"""Search as a player uses it: files ranked for words of a question, each with a line that says what speaks for it."""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Any

from reflectrl.wings.autoexplore.evidence import Profiles, Shares, weigh
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import Search
from reflectrl.wings.autoexplore.view import View
from reflectrl.wings.autoexplore.words import spoken

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
