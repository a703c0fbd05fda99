"""Numbers about written text that need no model: variety, length, likeness to references, copying from a source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from reflectrl.advice import install
from reflectrl.types import UserError

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words and punctuation marks in lower case."""
    return _WORD.findall(text.lower())


def distinct(texts: Sequence[str], n: int) -> float:
    """Share of different n-grams among all n-grams of the whole corpus (Li et al. 2016); 0 if there are none.

    It falls as the corpus grows, so only corpora of one size can be compared.
    """
    corpus = [words(text) for text in texts]
    grams = [gram for tokens in corpus for gram in zip(*(tokens[i:] for i in range(n)), strict=False)]
    return len(set(grams)) / len(grams) if grams else 0.0


def mean_length(texts: Sequence[str]) -> float:
    """Mean number of words and punctuation marks."""
    return sum(len(words(text)) for text in texts) / max(1, len(texts))


# ---- likeness to references ------------------------------------------------------------------------------------------


class _NoSynonyms:
    """Stands for WordNet where it is not on this machine."""

    def synsets(self, word: str) -> list[Any]:
        return []


@cache
def synonyms() -> tuple[Any, str]:
    """WordNet if it is on this machine (nltk's data folders), and what METEOR then matches by; nothing is downloaded.

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
    """Mean METEOR (Lavie and Agarwal 2007) of each text against the best of its references, computed by nltk.

    Returns:
        The mean, and what words were matched by: "exact+stem+synonyms" needs WordNet on this machine, otherwise it is
        "exact+stem"; the two must not be compared.
    """
    from nltk.translate.meteor_score import meteor_score

    wordnet, kind = synonyms()
    scores = [
        meteor_score([words(reference) for reference in found], words(text), wordnet=wordnet) if found else 0.0
        for text, found in zip(texts, references, strict=True)
    ]
    return sum(scores) / max(1, len(scores)), kind


# ---- copying from a source -------------------------------------------------------------------------------------------


def fragments(source: Sequence[str], text: Sequence[str]) -> list[int]:
    """Lengths of the pieces of `text` that stand in `source`, found greedily from the left, longest first.

    Source: Grusky et al. 2018, "Newsroom", figure 3.
    """
    starts: dict[str, list[int]] = {}
    for place, word in enumerate(source):
        starts.setdefault(word, []).append(place)
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
    """Share of the words that lie in copied pieces, and the mean length of the piece in which a word lies.

    Both 0 for a text without words (Grusky et al. 2018, equations 1 and 2).
    """
    written = words(text)
    found = fragments(words(source), written)
    count = max(1, len(written))
    return sum(found) / count, sum(length**2 for length in found) / count
