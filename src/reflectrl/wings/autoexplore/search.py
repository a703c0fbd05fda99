"""Search baseline: rank the files of a repository by the words that they share with a question.

Okapi BM25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", section 3), with an inverse document
frequency that cannot be negative, as in Lucene. No library is used: the formula takes three lines of numpy, while the
explanation of each hit needs the postings, which libraries do not expose. Their top k also leaves the order of ties to
chance.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.legible import legible
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.words import count_runs, count_words, spoken, words_of

LONGEST_QUESTION = 20_000
"""Largest number of characters of a question; enough for a bug report."""
LINE_CHARACTERS = 200
"""Longest line. Longer lines are split into pieces of this length."""
K1, B = 1.2, 0.75
"""Parameters of BM25: saturation of the term frequency, and strength of the length normalization."""
NAMES_WEIGHT = 0.7
"""Weight of the score of names relative to whole files, in "both". On 87 SWE-QA questions about two repositories, 0.4
to 1 were equally good, and better than 0 and 1.5. On two other repositories, 0.7 was the best of 0.2, 0.4 and 0.7."""

Integers = NDArray[np.integer]
Over = Literal["both", "files", "names"]


@dataclass(frozen=True)
class Hit:
    """File that may answer a question, and the reason."""

    path: str
    score: float
    """Score; larger is better. Comparable only within the same answer."""
    words: tuple[str, ...]
    """Words of the question, in lower case, that occur in the path or the contents; rarest in the repository first."""
    line: int | None = None
    """Number (from 1) of the line that matches best, with words weighted by rarity; None if no line has any word."""
    text: str = ""
    """Text of that line (or a piece of it), with printable characters only."""
    start: int | None = None
    """First line of the definition or passage around the line; None if unknown. `end` is its last line."""
    end: int | None = None
    name: str = ""
    """Name of that definition; "" if it has none."""
    why: str = ""
    """Reason in one line."""
    probability: float | None = None
    """Calibrated probability that the file answers; None if the method has none."""


class Search:
    """BM25 search in the files of a repository. Share it: its index is built at the first question, then kept.

    Args:
        repository: repository to search. A file that cannot be read is found by its path alone.
        over: "files" ranks by the words of paths and contents together. "names" ranks by the words of paths and reads
            no contents. "both" adds the two scores.
    """

    def __init__(self, repository: Repository, over: Over = "both") -> None:
        self.repository = repository
        self.over = over
        self.cut: set[str] = set()
        """Files that are searched only in part; complete once the index is built."""

    def search(self, question: str, k: int) -> list[Hit]:
        """Return the best `k` files, best first; fewer if fewer share a word with the question.

        Raises:
            UserError: the question has no word to search for.
        """
        return self.explain(question, self.rank(question, k))

    def explain(self, question: str, scored: Iterable[tuple[str, float]]) -> list[Hit]:
        """Make hits of files from any ranking, in the same order, with the words they share with the question.

        Args:
            scored: paths, and the scores to show with them.

        Raises:
            UserError: the question has no word to search for.
        """
        query = _Question(question)
        return [self._hit(path, score, query) for path, score in scored]

    def rank(self, question: str, most: int | None = None) -> list[tuple[str, float]]:
        """Return all files that share a word with the question and their scores, best first; ties are sorted by path.

        Args:
            most: largest number of files; None for all.

        Raises:
            UserError: the question has no word to search for.
        """
        query = _Question(question)
        scores_D = np.sum([weight * field.scores(query.counts) for field, weight in self._fields], axis=0)
        matching_F = np.flatnonzero(scores_D > 0)
        if most is not None:
            matching_F = matching_F[scores_D[matching_F] >= _least(scores_D[matching_F], most)]
        # Stable, since files are sorted by path.
        order_F = matching_F[np.argsort(-scores_D[matching_F], kind="stable")][:most]
        return [(self.repository.files[i], score) for i, score in zip(order_F, scores_D[order_F].tolist(), strict=True)]

    def rarity(self, word: str) -> float:
        """Return the inverse document frequency of a stemmed word: positive, and larger for rarer words."""
        return self._fields[0][0].rarity(word)

    def occurs(self, word: str) -> bool:
        """Return whether any file holds a stemmed word."""
        return any(field.holds(word) for field, _ in self._fields)

    @cached_property
    def _fields(self) -> list[tuple[Postings, float]]:
        """Return the searched fields and their weights. The first field determines the rarity of words."""
        names = Postings(map(count_runs, self.repository.files), words_of)
        if self.over == "names":
            return [(names, 1.0)]
        texts = (f"{path}\n{self._text(path)}" for path in self.repository.files)
        files = Postings(map(count_runs, texts), words_of)
        return [(files, 1.0), (names, NAMES_WEIGHT)] if self.over == "both" else [(files, 1.0)]

    def _text(self, path: str) -> str:
        if self.over == "names":
            return ""
        content = legible(self.repository, path)
        if not content.complete:
            self.cut.add(path)
        return content.text

    def _hit(self, path: str, score: float, asked: _Question) -> Hit:
        text = self._text(path)
        rarity = self._fields[0][0].rarity
        worth = {word: rarity(word) for word in count_words(f"{path}\n{text}") if word in asked.counts}
        rarest = sorted(worth, key=lambda word: (-worth[word], word))
        return Hit(path, score, tuple(asked.forms[word] for word in rarest), *_densest(text, worth))


class Postings:
    """Inverted index: word → documents with their BM25 weights.

    Args:
        documents: term → count, for each document.
        words_of: function that splits a term into words. It is called once per term, not once per document.
    """

    def __init__(
        self, documents: Iterable[Mapping[str, int]], words_of: Callable[[str], Sequence[str]] = lambda term: (term,)
    ) -> None:
        terms: defaultdict[str, int] = defaultdict(count().__next__)  # a new term gets the next number
        terms_P, times_P, sizes_D = array("i"), array("i"), array("i")
        for counts in documents:
            terms_P.extend(map(terms.__getitem__, counts))
            times_P.extend(counts.values())
            sizes_D.append(len(counts))
        self._documents = len(sizes_D)
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        words_T = [[self._numbers[word] for word in words_of(term)] for term in terms]
        self._numbers.default_factory = None
        document_P = np.repeat(np.arange(self._documents, dtype=np.int32), np.array(sizes_D))
        self._weigh(*_counted(words_T, np.array(terms_P), np.array(times_P), document_P))

    def _weigh(self, word_P: Integers, document_P: Integers, times_P: Integers) -> None:
        """Store the BM25 weight of each word in each document that holds it, grouped by word."""
        length_D = np.bincount(document_P, times_P, self._documents)
        share_D = length_D / max(length_D.mean(), 1.0) if len(length_D) else length_D
        self._weight_P = times_P * (K1 + 1) / (times_P + K1 * (1 - B + B * share_D[document_P]))
        self._document_P = document_P.astype(np.int32)
        self._start_W = np.concatenate(([0], np.bincount(word_P, minlength=len(self._numbers)).cumsum()))

    def scores(self, asked: Mapping[str, int]) -> NDArray[np.float64]:
        """Return the score of every document, (D,), for word → count; 0 for documents without any of the words."""
        scores_D = np.zeros(self._documents)
        for word in sorted(asked):  # sorted: a sum of floats depends on its order
            span = self._found(word)
            everywhere = span.stop - span.start == self._documents
            documents = slice(None) if everywhere else self._document_P[span]
            scores_D[documents] += asked[word] * self.rarity(word) * self._weight_P[span]
        return scores_D

    def rarity(self, word: str) -> float:
        """Return the inverse document frequency: positive, and larger for words in fewer documents."""
        span = self._found(word)
        document_frequency = span.stop - span.start
        return math.log1p((self._documents - document_frequency + 0.5) / (document_frequency + 0.5))

    def holds(self, word: str) -> bool:
        """Return whether any document holds a word."""
        return word in self._numbers

    def _found(self, word: str) -> slice:
        index = self._numbers.get(word)
        return slice(0, 0) if index is None else slice(*map(int, self._start_W[index : index + 2]))


def _counted(
    words_T: Sequence[Sequence[int]], term_P: Integers, times_P: Integers, document_P: Integers
) -> tuple[Integers, Integers, Integers]:
    """Convert counts of terms to counts of words: word, document and count, sorted by word, then by document."""
    # Suffixes: T terms, E words of all terms, P pairs (term, document), Q pairs (word, document) with repetitions, R
    # pairs (word, document) without. Expand P to Q, sort, and add up the counts of equal pairs.
    sizes_T = np.array([len(words) for words in words_T], int)
    word_E = np.array([word for words in words_T for word in words], int)
    sizes_P, starts_T = sizes_T[term_P], sizes_T.cumsum() - sizes_T
    within_Q = np.arange(sizes_P.sum()) - np.repeat(sizes_P.cumsum() - sizes_P, sizes_P)
    word_Q = word_E[np.repeat(starts_T[term_P], sizes_P) + within_Q]
    documents = int(document_P.max(initial=0)) + 1
    pair_Q = word_Q * documents + np.repeat(document_P, sizes_P)
    order_Q = pair_Q.argsort()
    pair_Q = pair_Q[order_Q]
    first_R = np.flatnonzero(np.diff(pair_Q, prepend=-1))
    times_R = np.add.reduceat(np.repeat(times_P, sizes_P)[order_Q], first_R) if len(first_R) else first_R
    return *divmod(pair_Q[first_R], documents), times_R


def _least(scores_F: NDArray[np.float64], most: int) -> float:
    """Return a lower bound on the `most`-th best score, from a sixteenth of the scores."""
    # A sample's `most`-th best score cannot exceed that of all scores. Sorting the few scores above it is much faster.
    sample = np.sort(scores_F[::16])
    return float(sample[-most]) if 0 < most <= len(sample) else 0.0


def check_question(question: str) -> None:
    """Check a question before a large repository is walked.

    Raises:
        UserError: it has no word to search for, or is longer than `LONGEST_QUESTION`.
    """
    if len(question) > LONGEST_QUESTION:
        raise UserError(f"the question has {len(question):,} characters; ask in at most {LONGEST_QUESTION:,}")
    _Question(question)


class _Question:
    """Words of a question: their counts, and the form in which each first occurs."""

    def __init__(self, question: str) -> None:
        pairs = spoken(question)
        if not pairs:
            what = "has no word to search for" if question.strip() else "is empty"
            raise UserError(f'the question {what}; ask something like "where are retries configured?"')
        self.counts = Counter(word for _, word in pairs)
        self.forms = {word: form for form, word in reversed(pairs)}


def _densest(text: str, worth: Mapping[str, float]) -> tuple[int | None, str]:
    """Return number and text of the line with the largest sum of word weights; the first line at ties."""
    best_weight, best_line, excerpt = 0.0, None, ""
    for line_number, line in enumerate(text.split("\n"), 1):
        for start in range(0, len(line), LINE_CHARACTERS):
            piece = line[start : start + LINE_CHARACTERS]
            weight = sum(worth.get(word, 0.0) for word in sorted(count_words(piece)))
            if weight > best_weight:
                best_weight, best_line, excerpt = weight, line_number, piece
    return best_line, printable(excerpt)
