"""Soft matches: the share of a question that a place holds, where words of similar meaning count in part.

Each word of the question is compared with each word of a place by their vectors, and the most similar one counts
(MaxSim, as in ColBERT, Khattab and Zaharia 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.meaning import Meaning
from reflectrl.wings.autoexplore.locate.passages import ReadFile, Terms
from reflectrl.wings.autoexplore.words import words_of

UNRELATED = 0.35
"""Cosine of two words up to which they have nothing in common."""
MOST_SIMILAR = 0.8
"""Largest value of a word that is not the question's own."""
MOST_RUNS = 1 << 17
COLUMNS = (
    "soft passage", "soft body", "soft three", "soft path", "soft name", "soft names", "soft file", "soft outline",
)  # fmt: skip
Floats = NDArray[np.float32]


class Lexicon:
    """Numbers for the words of files that are read. 0 is no word, and those up to the table's size have a vector."""

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self._numbers = {word: row + 1 for word, row in meaning.rows.items()}
        self._of_run: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._numbers) + 1

    def number(self, word: str) -> int:
        """Return the number of a word."""
        return self._numbers.setdefault(word, len(self._numbers) + 1)

    def of_run(self, run: str) -> tuple[int, ...]:
        """Return the numbers of the words of a run of letters and digits."""
        numbers = self._of_run.get(run)
        if numbers is None:
            if len(self._of_run) >= MOST_RUNS:
                self._of_run.clear()
            numbers = self._of_run[run] = tuple(map(self.number, words_of(run)))
        return numbers


class SoftMatch:
    """Soft matches with a question.

    Args:
        lexicon: numbers of words; all files must have been read before.
        weights: word of the question → weight.
    """

    def __init__(self, lexicon: Lexicon, weights: Mapping[str, float]) -> None:
        numbers = [lexicon.number(word) for word in weights]
        self._shares_Q = np.array(list(weights.values()), np.float32)
        self._shares_Q /= max(float(self._shares_Q.sum()), 1e-6)
        units = lexicon.meaning.units
        self._similar_NQ = np.zeros((len(lexicon), len(numbers)), np.float32)
        with_vector = [place for place, number in enumerate(numbers) if number <= len(units)]
        cosines = units @ units[[numbers[place] - 1 for place in with_vector]].T
        scaled = np.clip((cosines - UNRELATED) / (1 - UNRELATED), 0, 1) * MOST_SIMILAR
        self._similar_NQ[1 : len(units) + 1, with_vector] = scaled
        self._similar_NQ[numbers, np.arange(len(numbers))] = 1.0

    def of(self, numbers: Sequence[int]) -> Floats:
        """Return the best match of each word of the question among some words, (Q,)."""
        return self._similar_NQ[[0, *numbers]].max(axis=0)

    def file(self, terms: Terms, path_Q: Floats) -> list[float]:
        """Return the soft matches of a file in the order of `COLUMNS`.

        Args:
            path_Q: best matches of its path.
        """
        bodies_PQ = np.maximum.reduceat(self._similar_NQ[terms.numbers], terms.starts)
        names_PQ = np.maximum.reduceat(self._similar_NQ[terms.names], terms.name_starts)
        passages = np.maximum(bodies_PQ, path_Q) @ self._shares_Q
        names = names_PQ @ self._shares_Q
        places = (
            passages.max(), (bodies_PQ @ self._shares_Q).max(), np.sort(passages)[-3:].mean(), path_Q @ self._shares_Q,
            (np.maximum(names_PQ, path_Q) @ self._shares_Q).max(), np.sort(names)[-3:].mean(),
            np.maximum(bodies_PQ.max(axis=0), path_Q) @ self._shares_Q,
            np.maximum(names_PQ.max(axis=0), path_Q) @ self._shares_Q,
        )  # fmt: skip
        return [float(value) for value in places]

    def path(self, path_Q: Floats) -> float:
        """Return the soft match of a path alone."""
        return float(path_Q @ self._shares_Q)


def add_columns(
    columns: dict[str, NDArray[np.float32]],
    paths: Sequence[Iterable[str]],
    read: Mapping[int, ReadFile],
    lexicon: Lexicon | None,
    weights: Mapping[str, float],
) -> None:
    """Add the soft matches of candidates.

    Args:
        columns: ground → value of each candidate.
        paths: words of the path of each candidate.
        read: place among the candidates → file, for those that were read.
        lexicon: numbers of words; None leaves all columns 0.
        weights: word of the question → weight.
    """
    table = np.zeros((len(paths), len(COLUMNS)), np.float32)
    if lexicon is not None and weights:
        numbered = [[lexicon.number(word) for word in words] for words in paths]
        terms = {place: file.terms(lexicon.of_run) for place, file in read.items()}
        match = SoftMatch(lexicon, weights)
        for place, numbers in enumerate(numbered):
            path_Q = match.of(numbers)
            table[place, COLUMNS.index("soft path")] = match.path(path_Q)
            if place in terms:
                table[place] = match.file(terms[place], path_Q)
    columns.update(zip(COLUMNS, table.T, strict=True))
