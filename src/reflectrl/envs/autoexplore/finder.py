"""Search as a player uses it: files ranked for words of a question, each with a line that says what speaks for it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reflectrl.envs.autoexplore.evidence import Evidence, Profiles, weigh
from reflectrl.envs.autoexplore.names import shown
from reflectrl.envs.autoexplore.repository import Repository
from reflectrl.envs.autoexplore.search import Search
from reflectrl.envs.autoexplore.view import View
from reflectrl.envs.autoexplore.words import spoken

DEEPEST = 50
"""Files beyond this rank of BM25 are not shown by a search."""
WEIGHED = 30
"""So many of the first are held against the question part by part, and ordered by that."""
KEPT = 4096
"""So many questions' rankings are remembered."""
WORDS_SHOWN = 4
"""Words of the question that a line names."""


class Finder:
    """The search of one repository, shared by all episodes in it; what it found for a question is remembered."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.profiles = Profiles(repository)
        self._search = Search(repository)
        self._bm25 = lru_cache(maxsize=KEPT)(self._searched)
        self._order = lru_cache(maxsize=KEPT)(self._ordered)
        self.evidence = lru_cache(maxsize=8 * KEPT)(self._evidence)
        self.words = lru_cache(maxsize=KEPT)(self._words)
        self._weights = lru_cache(maxsize=KEPT)(self._weighed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Finder, (self.repository,)  # a copy, in another process say, remembers nothing

    def ranked(self, question: str, words: str, view: View) -> tuple[str, ...]:
        """Paths that a search finds, best first: for one word of the question, or for all of it where `words` is ""."""
        return tuple(path for path in self._order(question, words) if view.shows(path))

    def promise(self, path: str, question: str) -> float:
        """What speaks for a file in one number from 0 to 3.5: BM25, one definition, and half of each of the others.

        The weights are round numbers: of six choices that were tried, one of the two best for generated questions
        about repositories that nothing is trained on.
        """
        found = self.evidence(path, question)
        return self.score(path, question) + found.passage + (found.path + found.names + found.docs) / 2

    def line(self, number: int, path: str, question: str) -> str:
        """What is shown of a file: number, path, what speaks for it, its best definition, and words in it.

        What speaks for it are numbers in tenths: all in one (`promise`), BM25 as a share of the best file's, and the
        shares of the question that are covered by its path, its names, what it says of itself, all of it, what it says
        often, and the one definition that covers most.
        """
        found = self.evidence(path, question)
        shares = (found.path, found.names, found.docs, found.text, found.often, found.passage)
        tenths = " ".join(str(min(9, int(10 * share))) for share in (self.score(path, question), *shares))
        best = f" {found.best.name}" if found.best is not None else ""
        words = " ".join(found.shared[:WORDS_SHOWN])
        return f"{number} {shown(path)}: {int(10 * self.promise(path, question))} {tenths}{best}: {words}"

    def score(self, path: str, question: str) -> float:
        """BM25 of a file as a share of that of the best one; 0 for files that are not among the first."""
        return self._bm25(question).get(path, 0.0)

    def _searched(self, words: str) -> dict[str, float]:
        """The first files by BM25, best first, with their scores as shares of the best one's."""
        found = self._search.rank(words)[:DEEPEST]
        return {path: score / found[0][1] for path, score in found}

    def _ordered(self, question: str, words: str) -> tuple[str, ...]:
        found = list(self._bm25(words or question))
        first = sorted(found[:WEIGHED], key=lambda path: -self.promise(path, question))  # equals stay in BM25's order
        return (*first, *found[WEIGHED:])

    def _words(self, question: str) -> tuple[str, ...]:
        """The words of a question that occur in the repository, the rarest first, as the question has them."""
        weights, forms = self._weights(question)
        known = [word for word in weights if self._search.occurs(word)]
        return tuple(forms[word] for word in sorted(known, key=lambda word: (-weights[word], word)))

    def _weighed(self, question: str) -> tuple[dict[str, float], dict[str, str]]:
        """What each word of a question is worth, and the form in which it first occurs."""
        forms = {word: form for form, word in reversed(spoken(question))}
        return {word: self._search.rarity(word) for word in forms}, forms

    def _evidence(self, path: str, question: str) -> Evidence:
        return weigh(self.profiles.of(path), *self._weights(question))
