"""Metrics of generated text that need no model: diversity, length, similarity to references, copying from a source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from reflectrl.core.advice import install
from reflectrl.core.types import UserError

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case."""
    return _WORD.findall(text.lower())


def distinct(texts: Sequence[str], n: int) -> float:
    """Return the share of distinct n-grams among all n-grams of the corpus (Li et al. 2016); 0 if there are none.

    The share falls as the corpus grows, so only corpora of equal size can be compared.
    """
    corpus = [words(text) for text in texts]
    grams = [gram for tokens in corpus for gram in zip(*(tokens[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else 0.0


def mean_length(texts: Sequence[str]) -> float:
    """Return the mean number of words and punctuation marks per text."""
    return sum(len(words(text)) for text in texts) / max(1, len(texts))


# ---- similarity to references ----------------------------------------------------------------------------------------


class _NoSynonyms:
    """Replacement for WordNet if it is not on this machine."""

    def synsets(self, word: str) -> list[Any]:
        return []


@cache
def synonyms() -> tuple[Any, str]:
    """Return WordNet, if it is in nltk's data folders, and the name of METEOR's way of matching words.

    Nothing is downloaded. Without WordNet, the first value has no synonyms.

    Raises:
        UserError: nltk is not installed.
    """
    try:
        from nltk.corpus import wordnet
    except ImportError as error:
        raise UserError(f"METEOR needs nltk; {install('text')}") from error
    try:
        wordnet.ensure_loaded()
    except LookupError:
        return _NoSynonyms(), "exact+stem"
    return wordnet, "exact+stem+synonyms"


def meteor(texts: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """Return the mean METEOR (Lavie and Agarwal 2007) of texts, each against its best reference, computed by nltk.

    Returns:
        The mean, and the way of matching words: "exact+stem+synonyms" if WordNet is on this machine, else "exact+stem".
        Means with different ways of matching must not be compared.
    """
    from nltk.translate.meteor_score import meteor_score

    wordnet, kind = synonyms()
    scores = []
    for text, refs in zip(texts, references, strict=True):
        score = 0.0
        if refs:
            score = meteor_score([words(reference) for reference in refs], words(text), wordnet=wordnet)
        scores.append(score)
    return sum(scores) / max(1, len(scores)), kind


# ---- copying from a source -------------------------------------------------------------------------------------------


def fragments(source: Sequence[str], text: Sequence[str]) -> list[int]:
    """Return the lengths of fragments of `text` that occur in `source`, found greedily from the left, longest first.

    Source: Grusky et al. 2018, "Newsroom", figure 3.
    """
    starts: dict[str, list[int]] = {}
    for position, word in enumerate(source):
        starts.setdefault(word, []).append(position)
    lengths, i = [], 0
    while i < len(text):
        longest = max((_shared(source, j, text, i) for j in starts.get(text[i], ())), default=0)
        if longest:
            lengths.append(longest)
        i += max(1, longest)
    return lengths


def _shared(source: Sequence[str], j: int, text: Sequence[str], i: int) -> int:
    length = 0
    while i + length < len(text) and j + length < len(source) and text[i + length] == source[j + length]:
        length += 1
    return length


def coverage_and_density(source: str, text: str) -> tuple[float, float]:
    """Return the share of words in copied fragments, and the mean length of the fragment that a word belongs to.

    Both are 0 for a text without words (Grusky et al. 2018, equations 1 and 2).
    """
    written = words(text)
    lengths = fragments(words(source), written)
    count = max(1, len(written))
    return sum(lengths) / count, sum(length**2 for length in lengths) / count
