"""Weights of the features in AutoExplore's search: fitted on training questions and evaluated on the other splits.

    python -m benchmarks.autoexplore_weights [--library DIR] [--per-repo 60] [--splits validation test]

The files that BM25 ranks first are ordered by a weighted sum of features (`Finder.grounds`). The weights are fitted by
a conditional logit: they maximise the log-probability of the file that answers among the candidates of its question,
with a small L2 penalty. Only the training split is used for the fit. The table compares, per split, the share of
questions whose first file answers: by BM25, by the weights in use (`finder.WEIGHTS`), and by the fitted ones.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from reflectrl.wings.autoexplore.finder import GROUNDS, WEIGHED, WEIGHTS, Finder
from reflectrl.wings.autoexplore.library import Library, open_library
from reflectrl.wings.autoexplore.texts import printable

PENALTY = 1e-4
"""L2 penalty per question. With a hundred times as much, the fitted weights order no better than round ones."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Candidates:
    """First files of a question: their features (F, G), and True for the files that answer it (F,)."""

    grounds_FG: Array
    right_F: NDArray[np.bool_]


def candidates(library: Library, split: str, per_repo: int) -> Iterator[Candidates]:
    """Yield the candidates of at most `per_repo` questions per repository, also of those with no right candidate."""
    finders: dict[str, Finder] = {}
    asked = Counter[str]()
    for question in library.questions(split):
        asked[question.repo] += 1
        if asked[question.repo] > per_repo:
            continue
        finder = finders.setdefault(question.repo, Finder(library.repository(question.repo)))
        text = printable(question.question)
        paths = finder.first(text)
        if paths:
            grounds = np.array([finder.grounds(path, text) for path in paths])
            yield Candidates(grounds, np.array([path in question.gold for path in paths]))


def fitted(questions: Sequence[Candidates]) -> Array:
    """Fit the weights (G,) that make the answers most likely, as multiples of the largest."""
    known = [one for one in questions if one.right_F.any()]

    def loss(weights_G: Array) -> float:
        logp = [log_softmax(one.grounds_FG @ weights_G)[one.right_F] for one in known]
        return -float(np.mean([np.logaddexp.reduce(one) for one in logp])) + PENALTY * float(weights_G @ weights_G)

    found_G = np.asarray(minimize(loss, np.ones(len(GROUNDS)), method="L-BFGS-B").x)
    return found_G / abs(found_G).max()


def first_right(questions: Sequence[Candidates], weights_G: Array) -> float:
    """Return the share of questions whose first file answers. Ties go to the file that BM25 ranks higher."""
    return float(np.mean([one.right_F[int(np.argmax(one.grounds_FG @ weights_G))] for one in questions]))


def main() -> None:
    """Fit the weights, and print them and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="", help="folder of the library")
    parser.add_argument("--per-repo", type=int, default=60, help="questions per repository, at most")
    parser.add_argument("--splits", nargs="*", default=["validation", "test"], help="what is judged, beside train")
    options = parser.parse_args()
    library = open_library(options.library)
    found = {split: list(candidates(library, split, options.per_repo)) for split in ("train", *options.splits)}
    weights_G = fitted(found["train"])
    print("ground      " + " ".join(f"{name:>10}" for name in GROUNDS))
    for name, row in (("in use", WEIGHTS), ("fitted", weights_G)):
        print(f"{name:12}" + " ".join(f"{weight:10.2f}" for weight in row))
    bm25_G = np.array([float(name == "words") for name in GROUNDS])
    print(f"\nfirst file answers, of the first {WEIGHED} by BM25\nsplit        questions    BM25  in use  fitted")
    for split, questions in found.items():
        rates = [first_right(questions, weights) for weights in (bm25_G, np.array(WEIGHTS), weights_G)]
        print(f"{split:12} {len(questions):9} " + " ".join(f"{rate:7.1%}" for rate in rates))


if __name__ == "__main__":
    main()
