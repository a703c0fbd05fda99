"""Learn the weights of `locate`'s ranker listwise, and measure them in cross-validation by repository.

    python -m benchmarks.locate_ranker collect QUESTIONS.jsonl --trees DIR --out train.npz
    python -m benchmarks.locate_ranker fit swe-qa.npz train.npz --out src/.../locate/data/ranker.npz

`collect` asks every question and stores the grounds of the candidates. `fit` maximizes the logarithm of the probability
that a softmax over the candidates gives to the right files, with a quadratic penalty (L-BFGS). Every set has the same
weight. The percentages are fitted to the scores of cross-validation, and to those of the sets of --calibrate, which no
weight has seen. `benchmarks.locate_compare` measures baselines beside it.

DIR holds a folder per repository, OWNER+NAME, NAME or NAME-VERSION.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.grounds import CANDIDATES, COLUMNS
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.ranker import ABLATIONS, LEAST_SHARE, Ranker, inputs
from reflectrl.wings.autoexplore.making.imported import find_repo, gold_files

PENALTY = 0.1
FOLDS = 5
FIRST = (1, 5)
BINS = 10
CLAIMED = 5
"""Number of files of a question whose percentages are fitted."""
DIGITS = 4
"""Decimals of the shipped weights: sums in another order must not make other bytes."""
PLAIN = "word vectors"
"""Ablation whose weights are written for comparison: the search without vectors."""
SMALLEST_TREE = 30
"""Number of files below which a question about a repository says nothing about a search."""
Floats = NDArray[np.float64]


@dataclass
class Set:
    """Questions with their candidates. Q questions, C candidates, G grounds.

    Attributes:
        grounds: (Q, C, G).
        present: candidates that exist; `right`: candidates that answer.
        questions, repositories: of each question; `dominant`: one file clearly answers.
    """

    grounds: NDArray[np.float32]
    present: NDArray[np.bool_]
    right: NDArray[np.bool_]
    questions: list[str]
    repositories: list[str]
    dominant: NDArray[np.bool_]

    @classmethod
    def load(cls, path: Path) -> Set:
        """Read a set that `collect` wrote."""
        data = np.load(path, allow_pickle=False)
        texts = json.loads(str(data["texts"]))
        return cls(
            data["grounds"], data["present"], data["right"], texts["questions"], texts["repositories"], data["dominant"]
        )

    def save(self, path: Path) -> None:
        """Write the set."""
        texts = np.array(json.dumps({"questions": self.questions, "repositories": self.repositories}))
        arrays = {"grounds": self.grounds, "present": self.present, "right": self.right, "dominant": self.dominant}
        np.savez_compressed(path, **arrays, texts=texts)

    def inputs(self, without: Sequence[str] = ()) -> NDArray[np.float32]:
        """Return the ranker's inputs, (Q, C, I), with some grounds set to 0."""
        mask = np.array([name not in without for name in COLUMNS], np.float32)
        rows = []
        for grounds, present in zip(self.grounds, self.present, strict=True):
            row = np.zeros((len(present), inputs(grounds[:1] * mask).shape[1]), np.float32)
            row[present] = inputs(grounds[present] * mask)
            rows.append(row)
        return np.stack(rows)


def collect(questions: Path, trees: Path, most: int = 1000) -> Set:
    """Ask the questions whose repository and answer are there, at most `most` about each repository."""
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    examples: list[tuple[Any, ...]] = []
    for name in dict.fromkeys(row["repo"] for row in rows):
        root = tree_of(name, trees)
        engine = Engine(root) if root is not None else None
        if engine is None or len(engine.index.corpus) < SMALLEST_TREE:
            print(f"{name}: no tree, or too few files")
            continue
        for row in [row for row in rows if row["repo"] == name][:most]:
            inquiry = Inquiry.of(row["question"])
            gold = gold_files(row["gold"], engine.index.corpus.paths)
            if gold and inquiry.forms:
                candidates = engine.candidates(inquiry)
                right = [engine.index.corpus.paths[file] in gold for file in candidates.files.tolist()]
                examples.append((candidates.grounds, right, row["question"], name, bool(row.get("dominant"))))
        print(f"{name}: {sum(each[3] == name for each in examples)} questions", flush=True)
    size = len(examples)
    grounds = np.zeros((size, CANDIDATES, len(COLUMNS)), np.float32)
    present, right = np.zeros((size, CANDIDATES), bool), np.zeros((size, CANDIDATES), bool)
    for index, (values, answers, *_) in enumerate(examples):
        grounds[index, : len(values)] = values
        present[index, : len(values)] = True
        right[index, : len(values)] = answers
    return Set(grounds, present, right, [each[2] for each in examples], [each[3] for each in examples],
               np.array([each[4] for each in examples], bool))  # fmt: skip


def tree_of(name: str, trees: Path) -> Path | None:
    """Return the folder of a repository; None if there is none."""
    exact = trees / name.replace("/", "+")
    return exact if exact.is_dir() else find_repo(name, trees)


@dataclass
class Weights:
    """Weights of a linear ranker on standardized inputs."""

    mean: Floats
    scale: Floats
    weights: Floats

    def scores(self, x: NDArray[np.float32], present: NDArray[np.bool_]) -> Floats:
        """Return the scores, (Q, C); minus infinity for candidates that do not exist."""
        return np.where(present, ((x - self.mean) / self.scale) @ self.weights, -np.inf)


def fit(x: NDArray[np.float32], present: NDArray[np.bool_], right: NDArray[np.bool_], share: Floats) -> Weights:
    """Fit the weights.

    Args:
        share: weight of each question.
    """
    usable = right.any(axis=1)
    x, present, right, share = x[usable], present[usable], right[usable], share[usable] / share[usable].sum()
    mean, scale = x[present].mean(axis=0), x[present].std(axis=0) + 1e-3
    z = np.where(present[..., None], (x - mean) / scale, 0).astype(np.float32)

    def loss(weights: Floats) -> tuple[float, Floats]:
        scores = np.where(present, z @ weights.astype(np.float32), -1e9)
        parts = np.exp(scores - scores.max(axis=1, keepdims=True))
        answer = np.where(right, parts, 0)
        total, of_answer = parts.sum(axis=1), np.maximum(answer.sum(axis=1), 1e-30)
        error = (parts / total[:, None] - answer / of_answer[:, None]) * share[:, None]
        gradient = np.einsum("qc,qci->i", error.astype(np.float32), z) + 2 * PENALTY * weights
        return float(-(np.log(of_answer / total) * share).sum() + PENALTY * weights @ weights), gradient.astype(float)

    optimum = minimize(loss, np.zeros(z.shape[-1]), jac=True, method="L-BFGS-B", options={"maxiter": 100})
    return Weights(mean, scale, optimum.x)


def fit_sets(sets: Sequence[Set], without: Sequence[str], left_out: frozenset[str] = frozenset()) -> Weights:
    """Fit to several sets, each with the same weight, without some repositories."""
    masks = [np.array([name not in left_out for name in each.repositories]) for each in sets]
    x, present, right = (
        np.concatenate([values[mask] for values, mask in zip(column, masks, strict=True)])
        for column in (
            [each.inputs(without) for each in sets],
            [each.present for each in sets],
            [each.right for each in sets],
        )
    )
    share = np.concatenate([np.full(int(mask.sum()), 1 / max(int(mask.sum()), 1)) for mask in masks])
    return fit(x, present, right, share)


def folds(sets: Sequence[Set]) -> list[frozenset[str]]:
    """Divide the repositories of several sets into folds."""
    names = [sorted(set(each.repositories)) for each in sets]
    return [frozenset(name for each in names for name in each[fold::FOLDS]) for fold in range(FOLDS)]


def crossed(sets: Sequence[Set], fitted: Sequence[Weights], without: Sequence[str] = ()) -> list[Floats]:
    """Return the scores of each set's questions by weights that never saw a question about their repositories.

    Args:
        fitted: the weights that were fitted without each fold.
    """
    all_scores = []
    for each in sets:
        scores, x = np.full(each.present.shape, -np.inf), each.inputs(without)
        for left_out, weights in zip(folds(sets), fitted, strict=True):
            in_fold = np.array([name in left_out for name in each.repositories])
            scores[in_fold] = weights.scores(x[in_fold], each.present[in_fold])
        all_scores.append(scores)
    return all_scores


def fit_folds(sets: Sequence[Set], without: Sequence[str] = ()) -> list[Weights]:
    """Fit weights without each fold in turn."""
    return [fit_sets(sets, without, left_out) for left_out in folds(sets)]


def ranks(scores: Floats, right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rank of the first right candidate of each question, from 1; a large number if there is none."""
    order = np.argsort(-scores, axis=1, kind="stable")
    answers = np.take_along_axis(right, order, axis=1)
    return np.where(answers.any(axis=1), answers.argmax(axis=1) + 1, 10**6)


def calibrate(scored: Sequence[tuple[Set, Floats]]) -> dict[str, Floats]:
    """Return "calibration", the sharpness and the score of "nowhere" that make the right answers most likely, and
    "claim", the slope and offset that turn shares into percentages. Every set has the same weight.
    """
    scores = np.concatenate([scores for _, scores in scored])
    right = np.concatenate([each.right for each, _ in scored])
    weight = np.concatenate([np.full(len(scores), 1 / len(scores)) for _, scores in scored]) / len(scored)
    anywhere = right.any(axis=1)

    def loss(parameters: Floats) -> float:
        sharp = np.where(np.isfinite(scores), scores * np.exp(parameters[0]), -1e9)
        top = np.maximum(sharp.max(axis=1), parameters[1])
        parts, elsewhere = np.exp(sharp - top[:, None]), np.exp(parameters[1] - top)
        answer = np.where(anywhere, np.where(right, parts, 0).sum(axis=1), elsewhere)
        return float(-np.log(np.maximum(answer, 1e-30) / (parts.sum(axis=1) + elsewhere)) @ weight)

    optimum = minimize(loss, np.zeros(2), method="Nelder-Mead")
    calibration = np.array([np.exp(optimum.x[0]), optimum.x[1]])
    return {"calibration": calibration, "claim": _fit_claim(scored, calibration)}


def _fit_claim(scored: Sequence[tuple[Set, Floats]], calibration: Floats) -> Floats:
    """Return slope and offset of the logistic function that makes the outcomes of the first CLAIMED files most likely.

    The first file weighs as much as the others together.
    """
    ranker = _unweighted({"calibration": calibration, "claim": np.array([1.0, 0.0])})
    odds, hits, weights = list[float](), list[bool](), list[float]()
    for each, scores in scored:
        for row, present, right in zip(scores, each.present, each.right, strict=True):
            shares = ranker.shares(row[present].astype(np.float32))
            order = np.argsort(-shares, kind="stable")[:CLAIMED]
            certain = np.clip(shares[order].astype(float), LEAST_SHARE, 1 - LEAST_SHARE)
            odds += np.log(certain / (1 - certain)).tolist()
            hits += right[present][order].tolist()
            weights += [1 / len(scores), *[1 / (CLAIMED - 1) / len(scores)] * (len(order) - 1)]
    x, hit, weight = np.array(odds), np.array(hits), np.array(weights)

    def loss(line: Floats) -> float:
        claimed = line[0] * x + line[1]
        return float((np.logaddexp(0, claimed) - hit * claimed) @ weight)

    return np.asarray(minimize(loss, np.array([1.0, 0.0])).x)


def _unweighted(calibration: Mapping[str, Floats]) -> Ranker:
    """Return a ranker that only turns scores into percentages."""
    return Ranker({"mean": np.zeros(1), "scale": np.ones(1), "weights": np.zeros(1), **calibration})


def claims(each: Set, scores: Floats, calibration: Mapping[str, Floats]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the probability claimed for the first file of each question, and whether it answers."""
    ranker = _unweighted(calibration)
    claimed, hit = list[float](), list[bool]()
    for row, present, right in zip(scores, each.present, each.right, strict=True):
        probabilities = ranker.probabilities(ranker.shares(row[present].astype(np.float32)))
        claimed.append(float(probabilities.max()))
        hit.append(bool(right[present][probabilities.argmax()]))
    return np.array(claimed), np.array(hit)


def calibration_error(claimed: Floats, hit: NDArray[np.bool_]) -> float:
    """Return the expected calibration error."""
    bins = np.minimum((claimed * BINS).astype(int), BINS - 1)
    gaps = [abs(claimed[bins == i].sum() - hit[bins == i].sum()) for i in range(BINS)]
    return float(sum(gaps) / len(hit))


def main(words: Sequence[str] | None = None) -> None:
    """Collect or fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("questions", type=Path)
    collecting.add_argument("--trees", type=Path, required=True)
    collecting.add_argument("--most", type=int, default=1000, help="questions about each repository")
    collecting.add_argument("--out", type=Path, required=True)
    fitting = verbs.add_parser("fit")
    fitting.add_argument("sets", nargs="+", type=Path)
    fitting.add_argument("--ablations", action="store_true")
    fitting.add_argument("--out", type=Path)
    fitting.add_argument("--calibrate", nargs="*", type=Path, default=[], help="further sets for the percentages alone")
    fitting.add_argument("--folds", type=Path, help="folder for the weights of each fold, for `locate_compare`")
    args = parser.parse_args(words)
    if args.verb == "collect":
        collect(args.questions, args.trees, args.most).save(args.out)
    else:
        fit_and_report(args)


def fit_and_report(given: argparse.Namespace) -> None:
    """Print the figures of cross-validation and of ablations, and write the weights of a fit to everything."""
    sets = [Set.load(path) for path in given.sets]
    fitted = fit_folds(sets)
    scored = crossed(sets, fitted)
    held_out, weights = [Set.load(path) for path in given.calibrate], fit_sets(sets, ())
    held_out_scores = [(each, weights.scores(each.inputs(), each.present)) for each in held_out]
    calibration = calibrate([*zip(sets, scored, strict=True), *held_out_scores])
    for path, each, scores in zip(given.sets, sets, scored, strict=True):
        as_found = np.where(each.present, -np.arange(each.present.shape[1], dtype=float), -np.inf)
        _line(f"{path.stem}, the index alone", ranks(as_found, each.right), each)
        _line(f"{path.stem}, all grounds", ranks(scores, each.right), each)
        print(f"{path.stem}, ECE in cross-validation {calibration_error(*claims(each, scores, calibration)):.3f}")
    for path, (each, scores) in zip(given.calibrate, held_out_scores, strict=True):
        _line(f"{path.stem}, all grounds", ranks(scores, each.right), each)
        print(f"{path.stem}, ECE {calibration_error(*claims(each, scores, calibration)):.3f}")
    if given.out is not None:
        save(weights, calibration, given.out)
    if given.folds is not None:
        given.folds.mkdir(parents=True, exist_ok=True)
        for fold, weights in enumerate(fitted):
            save(weights, calibration, given.folds / f"{fold}.npz")
    for name, columns in ABLATIONS.items():
        if given.ablations or (given.folds is not None and name == PLAIN):
            fewer = fit_folds(sets, columns)
            for path, each, scores in zip(given.sets, sets, crossed(sets, fewer, columns), strict=True):
                _line(f"{path.stem}, without {name}", ranks(scores, each.right), each)
            if name == PLAIN and given.folds is not None:
                for fold, weights in enumerate([*fewer, fit_sets(sets, columns)]):
                    save(weights, calibration, given.folds / f"{fold}-plain.npz")


def save(weights: Weights, calibration: Mapping[str, Floats], path: Path) -> None:
    """Write the data of a ranker, without the time, so that the same fit makes the same bytes."""
    arrays = {"mean": weights.mean, "scale": weights.scale, "weights": weights.weights, **calibration}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, np.round(array, DIGITS).astype(np.float32))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data.getvalue())


def _line(name: str, rank_Q: NDArray[np.int64], checked: Set) -> None:
    parts = [f"{name}: n={len(rank_Q)}"]
    parts += [f"acc@{k} {100 * (rank_Q <= k).mean():.1f}" for k in FIRST]
    if checked.dominant.any():
        parts += [f"dominant acc@{k} {100 * (rank_Q[checked.dominant] <= k).mean():.1f}" for k in FIRST]
    print(", ".join(parts), flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
