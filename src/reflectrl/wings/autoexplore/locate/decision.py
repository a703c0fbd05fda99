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
from reflectrl.wings.autoexplore.locate.ranker import softmax

WEIGHT_SCALE = 8.0
"""Divisor of a word's weight in the network's inputs."""
FIRST = 8
"""Number of files that are looked at."""
UNSURE = 0.25
"""Probability of the first file below which `locate` says that it is not sure."""
Floats = NDArray[np.float32]


class Decider:
    """Networks that score files. The score is their mean, since one alone depends on where its training began.

    Args:
        weights: arrays by name, each with the networks as its first axis: matrices and offsets "match1", "match2",
            "gate1" and "gate2", as NAME.weight (networks, outputs, inputs) and NAME.bias; "out", (networks, numbers);
            "search", the factor of the search's score. And "sharpness", one number.
        meaning: table of word vectors.

    Attributes:
        sharpness: factor of the scores whose softmax is the belief in each file.
    """

    def __init__(self, weights: Mapping[str, NDArray[np.generic]], meaning: Meaning) -> None:
        as_floats = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self._meaning, self.sharpness = meaning, float(as_floats.pop("sharpness"))
        self._networks = list[dict[str, Floats]]()
        for index in range(len(as_floats["out"])):
            self._networks.append({name: array[index] for name, array in as_floats.items()})

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
        vectors_QD = self._meaning.each(asked)
        scaled_Q1 = weights_Q[:, None] / WEIGHT_SCALE
        shares_Q1 = weights_Q[:, None] / max(float(weights_Q.sum()), 1e-6)
        by_file = np.broadcast_to(scaled_Q1, (*matches_FQX.shape[:2], 1))
        of_matches = np.concatenate([matches_FQX, by_file], axis=-1)
        of_words = np.concatenate([vectors_QD, scaled_Q1, shares_Q1], axis=-1)
        scores = [_score(network, of_matches, of_words, search_F) for network in self._networks]
        return np.mean(scores, axis=0, dtype=np.float32)


def _score(network: Mapping[str, Floats], of_matches: Floats, of_words: Floats, search_F: Floats) -> Floats:
    """Return one network's scores, (F,).

    Args:
        network: its weights.
        of_matches: inputs about each file and word, (F, Q, inputs).
        of_words: inputs about each word, (Q, inputs).
        search_F: scores of the search.
    """
    found_FQN = _layers(network, "match", of_matches)
    gates = _layers(network, "gate", of_words)
    opened_QN = 1 / (1 + np.exp(-gates[:, :-1]))
    summed_FN = (found_FQN * opened_QN * softmax(gates[:, -1])[:, None]).sum(axis=1)
    return np.asarray(network["search"] * search_F + summed_FN @ network["out"], np.float32)


def _layers(network: Mapping[str, Floats], name: str, inputs: Floats) -> Floats:
    """Return the outputs of two layers with a rectifier between them."""
    hidden = np.maximum(inputs @ network[f"{name}1.weight"].T + network[f"{name}1.bias"], 0)
    return np.asarray(hidden @ network[f"{name}2.weight"].T + network[f"{name}2.bias"], np.float32)


@cache
def shipped_decider(meaning: Meaning) -> Decider:
    """Return the decision model in the package."""
    with files("reflectrl.wings.autoexplore.locate").joinpath("data/decider.npz").open("rb") as file:
        return Decider(dict(np.load(file, allow_pickle=False)), meaning)
