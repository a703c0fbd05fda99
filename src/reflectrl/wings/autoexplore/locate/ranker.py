"""Ranker: weighs the grounds of the candidates, and says how likely each is to answer.

Its weights were learned listwise by `python -m benchmarks.locate_ranker` and are data of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate.grounds import COLUMNS

Floats = NDArray[np.float32]
_ABSOLUTE = ("test", "generated", "vendored", "example", "init", "root", "was read", "length", "depth")
COMPARED = tuple(name for name in COLUMNS if not name.startswith("kind ") and name not in _ABSOLUTE)
"""Grounds that are also compared with the best candidate's."""
ABLATIONS: dict[str, tuple[str, ...]] = {
    "word vectors": ("meaning path", "meaning name", "meaning names"),
    "mined pairs": ("kin stem", "kin defined", "kin anywhere"),
    "files that were read": tuple(
        name
        for name in COLUMNS
        if name.startswith(("passage", "three", "phrases", "meaning name", "identifiers used", "ref"))
    ),
    "phrases": ("phrases", "phrases named"),
    "references": ("referred",),
    "identifiers": ("identifiers defined", "identifiers named like file", "identifiers used", "path named"),
    "kinds of files": (*(name for name in COLUMNS if name.startswith("kind ")), *_ABSOLUTE[:6]),
    "definitions": ("defined", "passage named", "kin defined", "phrases named"),
}
"""Groups of grounds, which can be left out to see what they are worth."""
MOST_CERTAIN = 0.97
"""Largest probability that is claimed: no ranking of words is ever sure."""
LEAST_SHARE = 1e-6
LEAST_BEST = 1e-6
"""Smallest value of the best candidate with which others are compared."""


def inputs(grounds: Floats) -> Floats:
    """Return the ranker's inputs for the candidates of a question, (F, I).

    They are the grounds, each compared ground as a share of the best candidate's, and a mark for the best. A cosine may
    be negative. Its share is never below -1, and 0 if no candidate's is positive: no multiple of next to nothing.
    """
    columns = [COLUMNS.index(name) for name in COMPARED]
    compared = grounds[:, columns]
    best = compared.max(axis=0, keepdims=True, initial=0.0)
    is_positive = best > LEAST_BEST
    shares = np.where(is_positive, np.maximum(compared / np.maximum(best, LEAST_BEST), -1.0), 0.0)
    marks = compared >= np.maximum(best, LEAST_BEST) - LEAST_BEST
    return np.concatenate([grounds, shares, marks], axis=1).astype(np.float32)


def softmax(scores: Floats) -> Floats:
    """Return positive numbers that sum to 1, in the ratios of the scores' exponentials."""
    parts = np.exp(scores - scores.max())
    return np.asarray(parts / parts.sum(), np.float32)


class Ranker:
    """Weighted sum of standardized inputs.

    Args:
        weights: arrays by name: mean, scale and weights, (I,); calibration: sharpness, and the score of "nowhere";
            claim: slope and offset of the percentages.
    """

    def __init__(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        as_floats = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self._mean_I, self._scale_I = as_floats["mean"], as_floats["scale"]
        self._weights_I = as_floats["weights"]
        self._sharpness, self._nowhere = (float(value) for value in as_floats["calibration"])
        self._slope, self._offset = (float(value) for value in as_floats["claim"])

    def scores(self, grounds: Floats) -> Floats:
        """Return the score of each candidate, (F,); larger is better."""
        if not len(grounds):
            return np.zeros(0, np.float32)
        scaled = (inputs(grounds) - self._mean_I) / self._scale_I
        return (scaled @ self._weights_I).astype(np.float32)

    def shares(self, scores: Floats) -> Floats:
        """Return the share of belief in each candidate, (F,). Their sum is below 1: the answer may be elsewhere."""
        if not len(scores):
            return scores
        sharp = scores * self._sharpness
        top = max(float(sharp.max()), self._nowhere)
        values = np.exp(sharp - top)
        return (values / (values.sum() + np.exp(self._nowhere - top))).astype(np.float32)

    def probabilities(self, shares: Floats) -> Floats:
        """Return the probability that each candidate answers, (F,). Their sum may exceed 1: several files may answer.

        A logistic function of the shares' log-odds (Platt, 1999). Shares alone are too low where several files answer,
        since these divide the belief among them, and too extreme elsewhere.
        """
        certain = np.clip(shares, LEAST_SHARE, 1 - LEAST_SHARE)
        odds = self._slope * np.log(certain / (1 - certain)) + self._offset
        return np.minimum(1 / (1 + np.exp(-odds)), MOST_CERTAIN).astype(np.float32)


@cache
def shipped_ranker() -> Ranker:
    """Return the ranker in the package."""
    with files("reflectrl.wings.autoexplore.locate").joinpath("data/ranker.npz").open("rb") as file:
        return Ranker(dict(np.load(file, allow_pickle=False)))
