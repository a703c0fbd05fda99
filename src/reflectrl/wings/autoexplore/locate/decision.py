"""Decision model of `locate`: reads the search's first files word by word, and chooses among them.

A small network: for each file and each word of the question, a layer turns the matches (`matches`) into a few numbers;
another one says, by the word's own vector and weight, which of them count, and how much the word counts. Their sum is
added to the search's score. It was trained listwise by `python -m benchmarks.locate_decision` on questions mined from
commits, and its weights are data of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.excerpts import Excerpt
from reflectrl.wings.autoexplore.locate.matches import matches, question_words
from reflectrl.wings.autoexplore.locate.meaning import Meaning

WEIGHT_SCALE = 8.0
"""Divisor of a word's weight in the network's inputs."""
FIRST = 8
"""Number of files that are looked at."""
UNSURE = 0.25
"""Probability of the first file below which `locate` says that it is not sure."""
Floats = NDArray[np.float32]


class Decider:
    """Network that scores files.

    Args:
        weights: arrays by name: matrices and offsets "match1", "match2", "gate1" and "gate2", each as NAME.weight
            (outputs, inputs) and NAME.bias; "out", (numbers,); "search", the factor of the search's score; "sharpness".
        meaning: table of word vectors.

    Attributes:
        sharpness: factor of the scores whose softmax is the belief in each file.
    """

    def __init__(self, weights: Mapping[str, NDArray[np.generic]], meaning: Meaning) -> None:
        self._weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self._meaning, self.sharpness = meaning, float(self._weights["sharpness"])

    def scores(self, weights: Mapping[str, float], excerpts: Sequence[Excerpt], search_F: Floats) -> Floats:
        """Return a score for each file, (F,); larger is better.

        Args:
            weights: weight of each word of the question.
            excerpts: what is seen of each file.
            search_F: scores of the search.
        """
        asked = question_words(weights)
        if not asked or not excerpts:
            return search_F
        matches_FQX = matches(list(asked), excerpts, self._meaning)
        weights_Q = np.array(list(asked.values()), np.float32)
        vectors_QD = self._meaning.groups([[word] for word in asked], {})
        scaled_Q1 = weights_Q[:, None] / WEIGHT_SCALE
        shares_Q1 = weights_Q[:, None] / max(float(weights_Q.sum()), 1e-6)
        by_file = np.broadcast_to(scaled_Q1, (*matches_FQX.shape[:2], 1))
        found_FQN = self._layers("match", np.concatenate([matches_FQX, by_file], axis=-1))
        gates = self._layers("gate", np.concatenate([vectors_QD, scaled_Q1, shares_Q1], axis=-1))
        opened_QN = 1 / (1 + np.exp(-gates[:, :-1]))
        attention_Q = np.exp(gates[:, -1] - gates[:, -1].max())
        attention_Q /= attention_Q.sum()
        summed_FN = (found_FQN * opened_QN * attention_Q[:, None]).sum(axis=1)
        return (self._weights["search"] * search_F + summed_FN @ self._weights["out"]).astype(np.float32)

    def _layers(self, name: str, inputs: Floats) -> Floats:
        """Return the outputs of two layers with a rectifier between them."""
        first, second = (
            (self._weights[f"{name}{layer}.weight"].T, self._weights[f"{name}{layer}.bias"]) for layer in (1, 2)
        )
        hidden = np.maximum(inputs @ first[0] + first[1], 0)
        return np.asarray(hidden @ second[0] + second[1], np.float32)


@cache
def shipped_decider(meaning: Meaning) -> Decider:
    """Return the decision model in the package."""
    with files("reflectrl.wings.autoexplore.locate").joinpath("data/decider.npz").open("rb") as file:
        return Decider(dict(np.load(file, allow_pickle=False)), meaning)
