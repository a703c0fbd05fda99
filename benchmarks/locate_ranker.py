"""Learn the weights of `locate`'s ranker listwise, measure them in cross-validation by repository, and compare.

    python -m benchmarks.locate_ranker collect QUESTIONS.jsonl --trees DIR --out train.npz
    python -m benchmarks.locate_ranker fit swe-qa.npz train.npz --check swe-qa.npz --out src/.../locate/data/ranker.npz
    python -m benchmarks.locate_ranker compare QUESTIONS.jsonl --trees DIR

`collect` asks every question and stores the grounds of the candidates. `fit` maximizes the logarithm of the probability
that a softmax over the candidates gives to the right files, with a quadratic penalty (L-BFGS). Every set has the same
weight. The sharpness of the probabilities and the score of "nowhere" are fitted to the scores of
cross-validation, so that they fit repositories that no weight has seen. `compare` reads one set, with baselines beside
it, and prints paired bootstrap intervals.

DIR holds a folder per repository, OWNER+NAME, NAME or NAME-VERSION.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.grounds import CANDIDATES, COLUMNS
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.ranker import ABLATIONS, Ranker, inputs
from reflectrl.wings.autoexplore.making.imported import find_repo, gold_files
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import Search
from reflectrl.wings.autoexplore.teacher import CODE, kind_of
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

PENALTY = 0.3
FOLDS = 5
FIRST = (1, 5)
BINS = 10
SAMPLES = 5000
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
        kept = np.array([name not in without for name in COLUMNS], np.float32)
        rows = []
        for grounds, present in zip(self.grounds, self.present, strict=True):
            found = np.zeros((len(present), inputs(grounds[:1] * kept).shape[1]), np.float32)
            found[present] = inputs(grounds[present] * kept)
            rows.append(found)
        return np.stack(rows)


def collect(questions: Path, trees: Path) -> Set:
    """Ask every question whose repository and answer are there."""
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    found: list[tuple[Any, ...]] = []
    for name in dict.fromkeys(row["repo"] for row in rows):
        root = _tree(name, trees)
        if root is None:
            print(f"{name}: no tree")
            continue
        engine = Engine(root)
        for row in rows:
            inquiry = Inquiry.of(row["question"])
            gold = gold_files(row["gold"], engine.index.corpus.paths) if row["repo"] == name else set()
            if gold and inquiry.forms:
                candidates = engine.candidates(inquiry)
                right = [engine.index.corpus.paths[file] in gold for file in candidates.files.tolist()]
                found.append((candidates.grounds, right, row["question"], name, bool(row.get("dominant"))))
        print(f"{name}: {sum(each[3] == name for each in found)} questions", flush=True)
    size = len(found)
    grounds = np.zeros((size, CANDIDATES, len(COLUMNS)), np.float32)
    present, right = np.zeros((size, CANDIDATES), bool), np.zeros((size, CANDIDATES), bool)
    for number, (values, answers, *_) in enumerate(found):
        grounds[number, : len(values)] = values
        present[number, : len(values)] = True
        right[number, : len(values)] = answers
    return Set(grounds, present, right, [each[2] for each in found], [each[3] for each in found],
               np.array([each[4] for each in found], bool))  # fmt: skip


def _tree(name: str, trees: Path) -> Path | None:
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

    found = minimize(loss, np.zeros(z.shape[-1]), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return Weights(mean, scale, found.x)


def fit_sets(sets: Sequence[Set], without: Sequence[str], left_out: frozenset[str] = frozenset()) -> Weights:
    """Fit to several sets, each with the same weight, without some repositories."""
    kept = [np.array([name not in left_out for name in each.repositories]) for each in sets]
    x, present, right = (
        np.concatenate([values[keep] for values, keep in zip(column, kept, strict=True)])
        for column in (
            [each.inputs(without) for each in sets],
            [each.present for each in sets],
            [each.right for each in sets],
        )
    )
    share = np.concatenate([np.full(int(keep.sum()), 1 / max(int(keep.sum()), 1)) for keep in kept])
    return fit(x, present, right, share)


def crossed(sets: Sequence[Set], checked: Set, without: Sequence[str] = ()) -> Floats:
    """Return scores of a set's questions by weights that never saw a question about their repositories."""
    names = sorted(set(checked.repositories))
    scores = np.full(checked.present.shape, -np.inf)
    x = checked.inputs(without)
    for fold in range(FOLDS):
        left_out = frozenset(names[fold::FOLDS])
        asked = np.array([name in left_out for name in checked.repositories])
        if asked.any():
            scores[asked] = fit_sets(sets, without, left_out).scores(x[asked], checked.present[asked])
    return scores


def ranks(scores: Floats, right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rank of the first right candidate of each question, from 1; a large number if there is none."""
    order = np.argsort(-scores, axis=1, kind="stable")
    answers = np.take_along_axis(right, order, axis=1)
    return np.where(answers.any(axis=1), answers.argmax(axis=1) + 1, 10**6)


def calibrate(scores: Floats, right: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the sharpness, and the score of "nowhere", that make the probabilities most likely."""

    def loss(parameters: Floats) -> float:
        sharp = np.where(np.isfinite(scores), scores * np.exp(parameters[0]), -1e9)
        top = np.maximum(sharp.max(axis=1), parameters[1])
        parts, nowhere = np.exp(sharp - top[:, None]), np.exp(parameters[1] - top)
        answer = np.where(right.any(axis=1), np.where(right, parts, 0).sum(axis=1), nowhere)
        return float(-np.log(np.maximum(answer, 1e-30) / (parts.sum(axis=1) + nowhere)).mean())

    found = minimize(loss, np.zeros(2), method="Nelder-Mead")
    return float(np.exp(found.x[0])), float(found.x[1])


def calibration_error(probabilities: Floats, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error of the probability of the file that stands first."""
    first = probabilities.argmax(axis=1)
    claimed = probabilities.max(axis=1)
    hit = right[np.arange(len(right)), first]
    bins = np.minimum((claimed * BINS).astype(int), BINS - 1)
    gaps = [abs(claimed[bins == one].sum() - hit[bins == one].sum()) for one in range(BINS)]
    return float(sum(gaps) / len(right))


def main(words: Sequence[str] | None = None) -> None:
    """Collect, fit or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("collect", "compare"):
        one = verbs.add_parser(verb)
        one.add_argument("questions", type=Path)
        one.add_argument("--trees", type=Path, required=True)
        one.add_argument("--out", type=Path)
    fitting = verbs.add_parser("fit")
    fitting.add_argument("sets", nargs="+", type=Path)
    fitting.add_argument("--check", type=Path, required=True)
    fitting.add_argument("--ablations", action="store_true")
    fitting.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    if given.verb == "collect":
        collect(given.questions, given.trees).save(given.out)
    elif given.verb == "compare":
        compare(given.questions, given.trees)
    else:
        fit_and_report(given)


def fit_and_report(given: argparse.Namespace) -> None:
    """Print the figures of cross-validation and of ablations, and write the weights of a fit to everything."""
    sets, checked = [Set.load(path) for path in given.sets], Set.load(given.check)
    baseline = ranks(
        np.where(checked.present, -np.arange(checked.present.shape[1], dtype=float), -np.inf), checked.right
    )
    _line("the index alone", baseline, checked)
    scores = crossed(sets, checked)
    _line("all grounds", ranks(scores, checked.right), checked)
    if given.ablations:
        for name, columns in ABLATIONS.items():
            _line(f"without {name}", ranks(crossed(sets, checked, columns), checked.right), checked)
    sharpness, nowhere = calibrate(scores, checked.right)
    found = fit_sets(sets, ())
    arrays = {"mean": found.mean, "scale": found.scale, "weights": found.weights}
    ranker = Ranker({**arrays, "calibration": np.array([sharpness, nowhere])})
    probabilities = np.stack([
        np.where(np.isfinite(row), ranker.probabilities(np.where(np.isfinite(row), row, -1e9)), 0) for row in scores
    ])  # fmt: skip
    print(f"ECE in cross-validation {calibration_error(probabilities, checked.right):.3f}")
    if given.out is not None:
        np.savez(given.out, **{name: array.astype(np.float32) for name, array in arrays.items()},
                 calibration=np.array([sharpness, nowhere], np.float32))  # fmt: skip


def _line(name: str, rank_Q: NDArray[np.int64], checked: Set) -> None:
    parts = [f"{name}: n={len(rank_Q)}"]
    parts += [f"acc@{k} {100 * (rank_Q <= k).mean():.1f}" for k in FIRST]
    if checked.dominant.any():
        parts += [f"dominant acc@{k} {100 * (rank_Q[checked.dominant] <= k).mean():.1f}" for k in FIRST]
    print(", ".join(parts), flush=True)


def compare(questions: Path, trees: Path) -> None:
    """Print the accuracy of the search and its baselines on a set, with paired intervals of the difference."""
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    arms: dict[str, list[int]] = {}
    claimed: list[tuple[float, bool]] = []
    repositories: list[str] = []
    for name in dict.fromkeys(row["repo"] for row in rows):
        root = _tree(name, trees)
        if root is None:
            continue
        engine, repository = Engine(root), Repository.open(root)
        finder, files, names = Finder(repository), Search(repository, "files"), Search(repository, "both")
        for row in (row for row in rows if row["repo"] == name):
            question, gold = row["question"], gold_files(row["gold"], engine.index.corpus.paths)
            if not gold or not Inquiry.of(question).forms:
                continue
            hits = engine.search(question, CANDIDATES)
            claimed.append((hits[0].probability or 0.0, hits[0].path in gold) if hits else (0.0, False))
            orders = {
                "locate": [hit.path for hit in hits],
                "locate, first code file": _code_first([hit.path for hit in hits]),
                "former search": list(finder.ranked(printable(question), "", View(repository))),
                "BM25, both": [path for path, _ in names.rank(question, CANDIDATES)],
                "BM25, whole files": [path for path, _ in files.rank(question, CANDIDATES)],
            }
            orders["former search, first code file"] = _code_first(orders["former search"])
            repositories.append(name)
            for arm, order in orders.items():
                rank = next((rank for rank, path in enumerate(order, 1) if path in gold), 10**6)
                arms.setdefault(arm, []).append(rank)
        print(f"{name}: {repositories.count(name)} questions", flush=True)
    _print_arms({arm: np.array(found) for arm, found in arms.items()})
    probability, hit = (np.array(column) for column in zip(*claimed, strict=True))
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [abs(probability[bins == one].sum() - hit[bins == one].sum()) for one in range(BINS)]
    print(f"ECE {sum(gaps) / len(hit):.3f} on {len(hit)} questions about {len(set(repositories))} repositories")


def _code_first(paths: Sequence[str]) -> list[str]:
    return sorted(paths, key=lambda path: kind_of(path) != CODE)


def _print_arms(arms: dict[str, NDArray[np.int64]]) -> None:
    draw = np.random.default_rng(0)
    ours = arms["locate"]
    samples = draw.integers(0, len(ours), (SAMPLES, len(ours)))
    for arm, found in arms.items():
        parts = [arm]
        for k in FIRST:
            differences = ((ours <= k).astype(float) - (found <= k))[samples].mean(axis=1) * 100
            low, high = np.percentile(differences, (2.5, 97.5))
            parts.append(
                f"acc@{k} {100 * (found <= k).mean():.1f} (locate +{differences.mean():.1f} [{low:.1f}, {high:.1f}])"
            )
        print(", ".join(parts))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
