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
"""Files beyond this rank are not shown by a search."""
KEPT = 4096
"""So many questions' rankings and lines are remembered."""
WORDS_SHOWN = 4
"""Words of the question that a line names."""


class Finder:
    """The search of one repository, shared by all episodes in it; what it found for a question is remembered."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.profiles = Profiles(repository)
        self._search = Search(repository)
        self._rank = lru_cache(maxsize=KEPT)(self._search.rank)
        self.evidence = lru_cache(maxsize=8 * KEPT)(self._evidence)
        self.words = lru_cache(maxsize=KEPT)(self._words)
        self._weights = lru_cache(maxsize=KEPT)(self._weighed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Finder, (self.repository,)  # a copy, in another process say, remembers nothing

    def ranked(self, question: str, words: str, view: View) -> tuple[str, ...]:
        """Paths that a search finds, best first: for one word of the question, or for all of it where `words` is ""."""
        found = self._rank(words or question)
        return tuple(path for path, _ in found if view.shows(path))[:DEEPEST]

    def line(self, number: int, path: str, question: str) -> str:
        """What is shown of a file: number, path, the shares of the question that its parts cover, its best part.

        The shares are in tenths: of its path, its names, what it says of itself, all of it, what it says often, and
        of the one definition that covers most.
        """
        found = self.evidence(path, question)
        numbers = (
            self.score(path, question),
            found.path,
            found.names,
            found.docs,
            found.text,
            found.often,
            found.passage,
        )
        tenths = " ".join(str(min(9, int(10 * share))) for share in numbers)
        best = f" {found.best.name}" if found.best is not None else ""
        return f"{number} {shown(path)}: {tenths}{best}: {' '.join(found.shared[:WORDS_SHOWN])}"

    def score(self, path: str, question: str) -> float:
        """BM25 of a file as a share of that of the best one."""
        return self._scores(question).get(path, 0.0)

    def _scores(self, question: str) -> dict[str, float]:
        found = self._rank(question)
        return {path: score / found[0][1] for path, score in found}

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
