"""The search baseline: the files of a repository ranked by the words that they share with a question.

Okapi BM25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", section 3), with an inverse document
frequency that cannot be negative, as in Lucene. It is written out here because a library would do the lesser part: the
formula is three lines of numpy, while the reasons beside each file need the lists of words and files that libraries
keep to themselves, and their top k leaves the order of equal scores to chance.
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

from reflectrl.types import UserError
from reflectrl.wings.autoexplore.legible import legible
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.words import count_runs, count_words, spoken, words_of

LINE_CHARACTERS = 200
"""Longer lines are taken in pieces of so many characters."""
K1, B = 1.2, 0.75
"""How soon further occurrences of a word stop counting; how far long files are held against their length."""
NAMES_WEIGHT = 0.7
"""What a match of names counts beside one of whole files, in "both". On 87 SWE-QA questions about two repositories,
0.4 to 1 were alike, and better than 0 and 1.5; on two further ones 0.7 was the best of 0.2, 0.4 and 0.7."""

Integers = NDArray[np.integer]
Over = Literal["both", "files", "names"]


@dataclass(frozen=True)
class Hit:
    """A file that may answer a question, and why."""

    path: str
    score: float
    """Larger is better; comparable between the files of one answer only."""
    words: tuple[str, ...]
    """Words of the question, in lower case, that its path or its contents share; the rarest in the repository first."""
    line: int | None = None
    """Number, from 1, of the line with most of them, rare ones counting for more; None where no line has any."""
    text: str = ""
    """That line (or a piece of it), in printable characters only."""


class Search:
    """Ranks the files of a repository. Make one and share it: its index is built at the first question, and kept.

    Args:
        repository: what is searched. A file that cannot be read is found by its path alone.
        over: "files" ranks by words of paths and contents together, "names" by those of paths, reading no contents;
            "both" adds up the two scores.
    """

    def __init__(self, repository: Repository, over: Over = "both") -> None:
        self.repository = repository
        self.over = over
        self.cut: set[str] = set()
        """Files of which only the beginning is searched, once the index is built."""

    def search(self, question: str, k: int) -> list[Hit]:
        """The best `k` files, best first; fewer where fewer share a word with the question.

        Raises:
            UserError: there is no word to search for in the question.
        """
        return self.explain(question, self.rank(question, k))

    def explain(self, question: str, scored: Iterable[tuple[str, float]]) -> list[Hit]:
        """Files that were found in another way, in the same order, with what they share with the question.

        Args:
            scored: paths, and the scores to be shown with them.

        Raises:
            UserError: there is no word to search for in the question.
        """
        asked = _Question(question)
        return [self._hit(path, score, asked) for path, score in scored]

    def rank(self, question: str, most: int | None = None) -> list[tuple[str, float]]:
        """Every file that shares a word with the question and its score, best first; equal ones sorted by path.

        Args:
            most: so many are enough; None ranks all.

        Raises:
            UserError: there is no word to search for in the question.
        """
        asked = _Question(question)
        scores_D = np.sum([weight * field.scores(asked.counts) for field, weight in self._fields], axis=0)
        found_F = np.flatnonzero(scores_D > 0)
        if most is not None:
            found_F = found_F[scores_D[found_F] >= _least(scores_D[found_F], most)]
        order_F = found_F[np.argsort(-scores_D[found_F], kind="stable")][:most]  # stable: files are sorted by path
        return [(self.repository.files[i], score) for i, score in zip(order_F, scores_D[order_F].tolist(), strict=True)]

    def rarity(self, word: str) -> float:
        """How much a word (without its ending) says: above 0, and larger for words that fewer files hold."""
        return self._fields[0][0].rarity(word)

    def occurs(self, word: str) -> bool:
        """Whether any file holds a word (without its ending)."""
        return any(field.holds(word) for field, _ in self._fields)

    @cached_property
    def _fields(self) -> list[tuple[Postings, float]]:
        """What is searched, and the weights; rarity is judged by the first."""
        names = Postings(map(count_runs, self.repository.files), words_of)
        if self.over == "names":
            return [(names, 1.0)]
        texts = (f"{path}\n{self._text(path)}" for path in self.repository.files)
        files = Postings(map(count_runs, texts), words_of)
        return [(files, 1.0), (names, NAMES_WEIGHT)] if self.over == "both" else [(files, 1.0)]

    def _text(self, path: str) -> str:
        if self.over == "names":
            return ""
        found = legible(self.repository, path)
        if not found.complete:
            self.cut.add(path)
        return found.text

    def _hit(self, path: str, score: float, asked: _Question) -> Hit:
        text = self._text(path)
        rarity = self._fields[0][0].rarity
        worth = {word: rarity(word) for word in count_words(f"{path}\n{text}") if word in asked.counts}
        rarest = sorted(worth, key=lambda word: (-worth[word], word))
        return Hit(path, score, tuple(asked.forms[word] for word in rarest), *_densest(text, worth))


class Postings:
    """Which words occur in which documents, and what that is worth (BM25).

    Args:
        documents: how often each term occurs in each of them.
        words_of: the words that a term consists of; each term is looked at once, however many documents hold it.
    """

    def __init__(
        self, documents: Iterable[Mapping[str, int]], words_of: Callable[[str], Sequence[str]] = lambda term: (term,)
    ) -> None:
        terms: defaultdict[str, int] = defaultdict(count().__next__)  # a new one gets the next number
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
        """Keep what each word is worth in each document that holds it, word by word."""
        length_D = np.bincount(document_P, times_P, self._documents)
        share_D = length_D / max(length_D.mean(), 1.0) if len(length_D) else length_D
        self._weight_P = times_P * (K1 + 1) / (times_P + K1 * (1 - B + B * share_D[document_P]))
        self._document_P = document_P.astype(np.int32)
        self._start_W = np.concatenate(([0], np.bincount(word_P, minlength=len(self._numbers)).cumsum()))

    def scores(self, asked: Mapping[str, int]) -> NDArray[np.float64]:
        """The score of every document, (D,), for words that are asked for so many times; 0 where none occurs."""
        scores_D = np.zeros(self._documents)
        for word in sorted(asked):  # sorted: a sum of floats depends on its order
            found = self._found(word)
            everywhere = found.stop - found.start == self._documents
            documents = slice(None) if everywhere else self._document_P[found]
            scores_D[documents] += asked[word] * self.rarity(word) * self._weight_P[found]
        return scores_D

    def rarity(self, word: str) -> float:
        """Inverse document frequency: above 0, and larger for words that fewer documents hold."""
        found = self._found(word)
        holding = found.stop - found.start
        return math.log1p((self._documents - holding + 0.5) / (holding + 0.5))

    def holds(self, word: str) -> bool:
        """Whether it occurs anywhere."""
        return word in self._numbers

    def _found(self, word: str) -> slice:
        number = self._numbers.get(word)
        return slice(0, 0) if number is None else slice(*map(int, self._start_W[number : number + 2]))


def _counted(
    words_T: Sequence[Sequence[int]], term_P: Integers, times_P: Integers, document_P: Integers
) -> tuple[Integers, Integers, Integers]:
    """Terms of documents → words of documents: word, document and how often, sorted by word and then by document."""
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
    """A score below which nothing can be among the first `most`, told from a sixteenth of the scores."""
    sample = np.sort(scores_F[::16])
    return float(sample[-most]) if 0 < most <= len(sample) else 0.0


def check_question(question: str) -> None:
    """UserError with one line where a question has no word to search for; said before a large repository is walked."""
    _Question(question)


class _Question:
    """How often each word is asked for, and the form in which it first occurs."""

    def __init__(self, question: str) -> None:
        pairs = spoken(question)
        if not pairs:
            what = "has no word to search for" if question.strip() else "is empty"
            raise UserError(f'the question {what}; ask something like "where are retries configured?"')
        self.counts = Counter(word for _, word in pairs)
        self.forms = {word: form for form, word in reversed(pairs)}


def _densest(text: str, worth: Mapping[str, float]) -> tuple[int | None, str]:
    """Number and text of the line whose words are worth most, the first of equals."""
    best, line, excerpt = 0.0, None, ""
    for number, whole in enumerate(text.split("\n"), 1):
        for start in range(0, len(whole), LINE_CHARACTERS):
            piece = whole[start : start + LINE_CHARACTERS]
            value = sum(worth.get(word, 0.0) for word in sorted(count_words(piece)))
            if value > best:
                best, line, excerpt = value, number, piece
    return line, printable(excerpt)
