"""Matches between the words of a question and what a decision sees of a file, word by word.

For each word of the question and each part of an excerpt: how often the word itself occurs, and how many words of
similar meaning there are, in steps of similarity (soft term frequencies by kernels: Xiong et al., SIGIR 2017).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.excerpts import Excerpt
from reflectrl.wings.autoexplore.locate.meaning import Meaning
from reflectrl.wings.autoexplore.words import words

QUESTION_WORDS = 32
"""Number of a question's words that are compared: those with the largest weights."""
PART_WORDS = {"path": 16, "names": 64, "naming": 12, "lines": 140}
"""Parts of an excerpt, with the number of words of each that are compared."""
SIMILARITIES = (0.9, 0.7, 0.5, 0.3, 0.1)
WIDTH = 0.1
"""Centres of the kernels, and their standard deviation."""
OF_PART = len(SIMILARITIES) + 2
FEATURES = OF_PART * len(PART_WORDS)
"""Numbers about a word and a part, and about a word and an excerpt."""
Floats = NDArray[np.float32]


def question_words(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the words that are compared, weightiest first, with their weights."""
    order = sorted(weights, key=lambda word: (-weights[word], word))[:QUESTION_WORDS]
    return {word: weights[word] for word in order}


def matches(asked: Sequence[str], excerpts: Sequence[Excerpt], meaning: Meaning) -> Floats:
    """Return the matches, (F, Q, FEATURES), for F excerpts and Q words of the question.

    Of each part: the logarithms of 1 + the soft frequencies of other words, and of 1 + the word's own frequency, and
    the largest similarity (1 if the word itself occurs). A word without a vector matches only itself.

    Args:
        asked: words of the question.
        excerpts: what is seen of each file.
        meaning: table of word vectors.
    """
    bags = [Counter(words(getattr(excerpt, part))[:most]) for excerpt in excerpts for part, most in PART_WORDS.items()]
    vocabulary = list(dict.fromkeys(word for bag in bags for word in bag))
    column = {word: index for index, word in enumerate(vocabulary)}
    counts_BV = np.zeros((len(bags), len(vocabulary)), np.float32)
    own_BQ = np.zeros((len(bags), len(asked)), np.float32)
    for row, bag in enumerate(bags):
        counts_BV[row, [column[word] for word in bag]] = list(bag.values())
        own_BQ[row] = [bag[word] for word in asked]
    similar_QV = meaning.each(asked) @ meaning.each(vocabulary).T
    for row, word in enumerate(asked):
        if word in column:
            similar_QV[row, column[word]] = 0.0  # its own frequency says it already
    centres = np.array(SIMILARITIES, np.float32)
    kernels_QKV = np.exp(-((similar_QV[:, None] - centres[:, None]) ** 2) / (2 * WIDTH**2)) * (similar_QV != 0)[:, None]
    soft_BQK = np.einsum("qkv,bv->bqk", kernels_QKV, counts_BV, optimize=True)
    best_BQ = np.stack([similar_QV[:, row > 0].max(axis=1, initial=0.0) for row in counts_BV])
    best_BQ = np.where(own_BQ > 0, 1.0, best_BQ)
    values = np.concatenate([np.log1p(soft_BQK), np.log1p(own_BQ)[..., None], best_BQ[..., None]], axis=-1)
    by_file = values.reshape(len(excerpts), len(PART_WORDS), len(asked), OF_PART).swapaxes(1, 2)
    return by_file.reshape(len(excerpts), len(asked), FEATURES).astype(np.float32)
