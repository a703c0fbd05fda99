"""Word vectors: words of related meaning point in similar directions. See data/README.md for their origin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Meaning:
    """Table of word vectors."""

    def __init__(self, words: Iterable[str], vectors: NDArray[np.int8]) -> None:
        self._rows = {word: row for row, word in enumerate(words)}
        self._units = unit(vectors.astype(np.float32))
        self.size = vectors.shape[1]

    def of(self, weights: Mapping[str, float]) -> Vector:
        """Return the unit vector of weighted words; zeros if none is in the table."""
        weighted_rows = [(self._rows[word], weight) for word, weight in weights.items() if word in self._rows]
        if not weighted_rows:
            return np.zeros(self.size, np.float32)
        rows, shares = zip(*weighted_rows, strict=True)
        return unit(np.array(shares, np.float32) @ self._units[list(rows)])

    def each(self, words: Iterable[str]) -> NDArray[np.float32]:
        """Return the unit vector of each word, (words, size); zeros for words that are not in the table."""
        rows = [self._rows.get(word, -1) for word in words]
        vectors = self._units[rows]
        vectors[np.array(rows, int) < 0] = 0.0
        return vectors

    def groups(self, groups: Iterable[Iterable[str]], weight: Mapping[str, float]) -> NDArray[np.float32]:
        """Return a unit vector for each group of words, (G, size).

        Args:
            weight: word → weight; words that are missing count 1.
        """
        rows, shares, sizes = list[int](), list[float](), list[int]()
        row_of = self._rows
        for group in groups:
            in_table = [word for word in group if word in row_of]
            rows += [row_of[word] for word in in_table]
            if weight:
                shares += [weight.get(word, 1.0) for word in in_table]
            sizes.append(len(in_table))
        sums = np.zeros((len(sizes), self.size), np.float32)
        if rows:
            weighted = self._units[rows]
            if weight:
                weighted *= np.array(shares, np.float32)[:, None]
            sizes_G = np.array(sizes)
            holding = np.flatnonzero(sizes_G)
            sums[holding] = np.add.reduceat(weighted, (sizes_G.cumsum() - sizes_G)[holding])
        return unit(sums)


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to length 1; zeros stay zeros."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)


class Kin:
    """Words of a question → words that names in code use for the same thing: "format" → "fmt"."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._partners: dict[str, list[tuple[str, float]]] = {}
        for line in lines:
            word, *others = line.split()
            pairs = (other.rsplit(":", 1) for other in others)
            self._partners[word] = [(other, float(value)) for other, value in pairs]

    def of(self, word: str) -> list[tuple[str, float]]:
        """Return the partners of a word with their strengths, strongest first."""
        return self._partners.get(word, [])


SAYS_ALL = 6.0
"""Negative logarithm of the share of questions below which a word counts fully (a quarter of a percent)."""


class Telling:
    """Weights of a question's words: "mechanism" and "implement" are asked about every repository and say little."""

    def __init__(self, lines: Iterable[str]) -> None:
        pairs = (line.split() for line in lines)
        self._factors = {word: min(1.0, -math.log(float(share)) / SAYS_ALL) for word, share in pairs}

    def of(self, word: str) -> float:
        """Return a factor of a word's rarity, from 0 to 1."""
        return self._factors.get(word, 1.0)


_DATA = "reflectrl.wings.autoexplore.locate"


@cache
def shipped_vectors() -> Meaning:
    """Return the table of word vectors in the package."""
    with files(_DATA).joinpath("data/words.npz").open("rb") as file:
        data = np.load(file, allow_pickle=False)
        return Meaning(str(data["words"]).split("\n"), data["vectors"])


@cache
def shipped_kin() -> Kin:
    """Return the pairs of words in the package."""
    return Kin(files(_DATA).joinpath("data/pairs.txt").read_text(encoding="utf-8").splitlines())


@cache
def shipped_telling() -> Telling:
    """Return the table of common words of questions in the package."""
    return Telling(files(_DATA).joinpath("data/asked.txt").read_text(encoding="utf-8").splitlines())
