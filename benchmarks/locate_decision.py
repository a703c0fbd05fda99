"""Train and measure the decision model of `locate`.

    python -m benchmarks.locate_decision collect QUESTIONS.jsonl --trees DIR --sets SET.npz ... --folds FOLDS --out FILE
    python -m benchmarks.locate_decision fit swe-qa.npz train.npz --held-out dev.npz --out .../locate/data/decider.npz
    python -m benchmarks.locate_decision report test.npz

`collect` writes what the model sees of each question's first eight files, and of those that a further look would show.
Repositories of the sets are ranked with the weights of the fold that left them out (`locate_ranker fit --folds`),
others with those in the package. `fit` maximizes the probability of the right files among the first eight, in
cross-validation by repository and then on everything. `benchmarks.locate_walks` learns by RL when a further look pays.
`report` measures the shipped model on questions that nothing was fitted to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from benchmarks.locate_looking import FURTHER, further_looks
from benchmarks.locate_ranker import SMALLEST_TREE, Set, calibration_error, folds, tree_of
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.decision import FIRST, UNSURE, WEIGHT_SCALE
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.matches import FEATURES, QUESTION_WORDS, matches, question_words
from reflectrl.wings.autoexplore.locate.meaning import shipped_vectors
from reflectrl.wings.autoexplore.locate.ranker import Ranker, shipped_ranker
from reflectrl.wings.autoexplore.making.imported import gold_files

LOOKS = ("first", "more", "follow", "ask again")
FILES = FIRST + (len(LOOKS) - 1) * FURTHER
"""Largest number of files that can be looked at for a question."""
MISSING = -1e4
"""Score of the search for a file that does not exist."""
SEEDS = 3
"""Number of networks whose mean is the model."""
HIDDEN, NUMBERS, DROPOUT = 64, 16, 0.3
BATCH, EPOCHS, RATE, DECAY, WARM_UP, LAST_RATE = 32, 10, 2e-3, 0.01, 50, 0.05
MIX = 0.5
"""Share of the network's score in the model's; the rest is the search's. Chosen on the development repositories and, in
cross-validation, on SWE-QA: all of it gains a little more on mined questions, and loses on SWE-QA's.
"""
FAR = 100
"""Rank of an answer that is not among the files."""
SAMPLES = 5000
RANKS = (1, 3, 5)
Row = dict[str, Any]


# ---- what the model sees ---------------------------------------------------------------------------------------------


@dataclass
class Decisions:
    """Questions with the files that can be looked at. N questions, F files, Q words, X numbers about a word and a file.

    Attributes:
        matches_NFQX: as returned by `matches`.
        weights_NQ: weight of each word of the question; 0 where there is none.
        vectors_NQD: word vectors.
        search_NF: scores of the search; MISSING for files that do not exist.
        right_NF: files that answer.
        looks_NFL: files that each look shows.
        rows: about each question: id, repo, dominant, claim (percentage of the first file), kinds (of the files).
    """

    matches_NFQX: NDArray[np.float16]
    weights_NQ: NDArray[np.float32]
    vectors_NQD: NDArray[np.float16]
    search_NF: NDArray[np.float32]
    right_NF: NDArray[np.bool_]
    looks_NFL: NDArray[np.bool_]
    rows: list[Row]

    def save(self, path: Path) -> None:
        """Write the questions."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "rows"}
        np.savez(path, **arrays, rows=np.array(json.dumps(self.rows)))

    @classmethod
    def load(cls, path: Path) -> Decisions:
        """Read questions that `collect` wrote."""
        with np.load(path, allow_pickle=False) as data:
            arrays = {field.name: data[field.name] for field in fields(cls) if field.name != "rows"}
            return cls(**arrays, rows=json.loads(str(data["rows"])))

    @property
    def repositories(self) -> list[str]:
        """Return the repository of each question."""
        return [row["repo"] for row in self.rows]

    def tensors(self, which: NDArray[np.intp]) -> tuple[Tensor, ...]:
        """Return matches, weights, vectors and scores of some questions, without words that none of them has."""
        longest = max(1, int((self.weights_NQ[which] > 0).sum(axis=1).max()))
        of_words = (self.matches_NFQX[which, :, :longest], self.weights_NQ[which, :longest])
        arrays = (*of_words, self.vectors_NQD[which, :longest], self.search_NF[which])
        return tuple(torch.from_numpy(array.astype(np.float32)) for array in arrays)


def collect(questions: Path, trees: Path, sets: Sequence[Path], fitted: Path, out: Path) -> None:
    """Write what the model sees of each question's files."""
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    left_out = folds([Set.load(path) for path in sets])
    examples = list[tuple[Any, ...]]()
    for name in dict.fromkeys(row["repo"] for row in rows):
        root = tree_of(name, trees)
        fold = next((i for i, names in enumerate(left_out) if name in names), None)
        ranker = shipped_ranker() if fold is None else Ranker(dict(np.load(fitted / f"{fold}.npz")))
        engine = Engine(root, ranker=ranker) if root is not None else None
        if engine is None or len(engine.index.corpus) < SMALLEST_TREE:
            print(f"{name}: no tree, or too few files")
            continue
        for row in [row for row in rows if row["repo"] == name]:
            if (example := _example(engine, ranker, row)) is not None:
                examples.append(example)
        print(f"{name}: {len(examples)} questions so far", flush=True)
    *arrays, abouts = zip(*examples, strict=True)
    Decisions(*(np.stack(array) for array in arrays), list(abouts)).save(out)


def _example(engine: Engine, ranker: Ranker, row: Row) -> tuple[Any, ...] | None:
    """Return the fields of `Decisions` for a question; None if it has no answer here."""
    paths, inquiry, meaning = engine.index.corpus.paths, Inquiry.of(row["question"]), shipped_vectors()
    gold = gold_files(row["gold"], paths)
    if not gold or not inquiry.forms:
        return None
    candidates = engine.candidates(inquiry)
    scores = ranker.scores(candidates.grounds)
    looks = {"first": np.argsort(-scores, kind="stable")[:FIRST].tolist()}
    looks |= further_looks(engine, ranker, inquiry, candidates, scores)
    shown = list(dict.fromkeys(index for indices in looks.values() for index in indices))
    asked = question_words(candidates.weights)
    matches_FQX = np.zeros((FILES, QUESTION_WORDS, FEATURES), np.float16)
    matches_FQX[: len(shown), : len(asked)] = matches(list(asked), engine.excerpts(inquiry, candidates, shown), meaning)
    weights_Q, vectors_QD = np.zeros(QUESTION_WORDS, np.float32), np.zeros((QUESTION_WORDS, meaning.size), np.float16)
    weights_Q[: len(asked)] = list(asked.values())
    vectors_QD[: len(asked)] = meaning.each(asked)
    search_F, right_F = np.full(FILES, MISSING, np.float32), np.zeros(FILES, bool)
    search_F[: len(shown)] = scores[shown]
    right_F[: len(shown)] = [paths[int(candidates.files[index])] in gold for index in shown]
    looks_FL = np.zeros((FILES, len(LOOKS)), bool)
    for column, name in enumerate(LOOKS):
        looks_FL[[shown.index(index) for index in looks[name]], column] = True
    about = {key: row[key] for key in ("id", "repo")} | {"dominant": bool(row.get("dominant"))}
    shares = ranker.shares(scores)
    about["claim"] = float(ranker.probabilities(shares).max())
    about["among_first"] = float(shares[looks["first"]].sum())
    about["kinds"] = [int(engine.index.corpus.kinds[int(candidates.files[index])]) for index in shown]
    return matches_FQX, weights_Q, vectors_QD, search_F, right_F, looks_FL, about


# ---- the choice ------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """`Decider` that learns. It starts as the search's own order."""

    def __init__(self) -> None:
        super().__init__()
        vector_size = shipped_vectors().size
        self.match1, self.match2 = nn.Linear(FEATURES + 1, HIDDEN), nn.Linear(HIDDEN, NUMBERS)
        self.gate1, self.gate2 = nn.Linear(vector_size + 2, HIDDEN), nn.Linear(HIDDEN, NUMBERS + 1)
        self.out, self.search = nn.Parameter(torch.zeros(NUMBERS)), nn.Parameter(torch.tensor(1.0))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, matches_NFQX: Tensor, weights_NQ: Tensor, vectors_NQD: Tensor, search_NF: Tensor) -> Tensor:
        """Return the scores, (N, F)."""
        scaled_NQ1 = (weights_NQ / WEIGHT_SCALE)[..., None]
        shares_NQ1 = (weights_NQ / weights_NQ.sum(1, keepdim=True).clamp(min=1e-6))[..., None]
        by_file = scaled_NQ1[:, None].expand(*matches_NFQX.shape[:3], 1)
        hidden_NFQH = self.match1(torch.cat([matches_NFQX, by_file], dim=-1)).relu()
        found_NFQM = self.match2(self.dropout(hidden_NFQH))
        gate = self.gate1(torch.cat([vectors_NQD, scaled_NQ1, shares_NQ1], dim=-1)).relu()
        gates = self.gate2(self.dropout(gate))
        attention_NQ = gates[..., -1].masked_fill(weights_NQ == 0, -torch.inf).softmax(-1).nan_to_num()
        opened_NQM = gates[..., :-1].sigmoid() * attention_NQ[..., None]
        summed_NFM = (found_NFQM * opened_NQM[:, None]).sum(2)
        scores: Tensor = self.search * search_NF + summed_NFM @ self.out
        return scores


def train_all(parts: Sequence[tuple[Decisions, NDArray[np.bool_]]]) -> nn.ModuleList:
    """Train the networks of a decision model, each from another start."""
    return nn.ModuleList(train(parts, seed) for seed in range(SEEDS))


def train(parts: Sequence[tuple[Decisions, NDArray[np.bool_]]], seed: int) -> Network:
    """Train listwise on the questions of several sets whose answer is among the first files."""
    torch.manual_seed(seed)
    rng, network = np.random.default_rng(seed), Network()
    usable = [np.flatnonzero(use & (each.right_NF & each.looks_NFL[..., 0]).any(axis=1)) for each, use in parts]
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    batches_of = [max(1, len(which) // BATCH) for which in usable]
    steps = EPOCHS * sum(batches_of)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * (1 - (1 - LAST_RATE) * step / steps)
    )
    for _ in range(EPOCHS):
        batches = [
            (each, batch)
            for (each, _), which, count in zip(parts, usable, batches_of, strict=True)
            for batch in np.array_split(rng.permutation(which), count)
        ]
        for index in rng.permutation(len(batches)):
            each, batch = batches[index]
            shown_NF = torch.from_numpy(each.looks_NFL[batch][..., 0])
            right_NF = torch.from_numpy(each.right_NF[batch]) & shown_NF
            logp_NF = network(*each.tensors(batch)).masked_fill(~shown_NF, -torch.inf).log_softmax(1)
            loss = -logp_NF.masked_fill(~right_NF, -torch.inf).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        network.out.mul_(MIX)
        network.search.mul_(MIX).add_(1 - MIX)
    return network.eval()


def scores_of(networks: nn.ModuleList, each: Decisions) -> NDArray[np.float32]:
    """Return the model's scores, (N, F)."""
    with torch.inference_mode():
        batches = [each.tensors(batch) for batch in np.array_split(np.arange(len(each.rows)), len(each.rows) // 64 + 1)]
        by_network = [torch.cat([network(*batch) for batch in batches]) for network in networks]
    scores_NF = torch.stack(by_network).mean(0).numpy()
    return np.where(each.search_NF > MISSING, scores_NF, MISSING)


def fit_folds(sets: Sequence[Decisions]) -> list[nn.ModuleList]:
    """Train without each fold of the repositories in turn."""
    models = list[nn.ModuleList]()
    for left_out in folds(sets):
        masks = [np.array([row["repo"] not in left_out for row in each.rows]) for each in sets]
        models.append(train_all(list(zip(sets, masks, strict=True))))
    return models


def crossed(sets: Sequence[Decisions], models: Sequence[nn.ModuleList]) -> list[NDArray[np.float32]]:
    """Return the scores of each set's questions by the model that never saw a question about their repositories."""
    all_scores = [np.zeros_like(each.search_NF) for each in sets]
    for left_out, model in zip(folds(sets), models, strict=True):
        for each, scores in zip(sets, all_scores, strict=True):
            in_fold = np.array([row["repo"] in left_out for row in each.rows])
            scores[in_fold] = scores_of(model, each)[in_fold]
    return all_scores


# ---- percentages -----------------------------------------------------------------------------------------------------


def claims(each: Decisions, scores_NF: NDArray[np.float32], sharpness: float) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the probability that is printed for the first file of each question, and whether it answers."""
    first_NF = each.looks_NFL[..., 0]
    sharp_NF = np.where(first_NF, scores_NF * sharpness, MISSING)
    parts_NF = np.exp(sharp_NF - sharp_NF.max(axis=1, keepdims=True))
    together_N = np.array([row["among_first"] for row in each.rows])
    share_N = together_N * parts_NF.max(axis=1) / parts_NF.sum(axis=1)
    hit_N = np.take_along_axis(each.right_NF, sharp_NF.argmax(axis=1)[:, None], axis=1)[:, 0]
    return shipped_ranker().probabilities(share_N.astype(np.float32)).astype(float), hit_N


def fit_sharpness(scored: Sequence[tuple[Decisions, NDArray[np.float32]]]) -> float:
    """Return the factor of the scores that makes the outcomes of the first files most likely, each set alike."""

    def loss(sharpness: float) -> float:
        total = 0.0
        for each, scores_NF in scored:
            claimed_N, hit_N = claims(each, scores_NF, sharpness)
            total -= float(np.log(np.where(hit_N, claimed_N, 1 - claimed_N)).mean())
        return total

    return float(minimize_scalar(loss, bounds=(0.2, 3.0), method="bounded").x)


# ---- verbs -----------------------------------------------------------------------------------------------------------


def ranks_of(scores_NF: NDArray[np.float32], right_NF: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the rank of the first right file, from 1; FAR if there is none."""
    order = np.argsort(-scores_NF, axis=1, kind="stable")
    answers = np.take_along_axis(right_NF, order, axis=1)
    return np.where(answers.any(axis=1), answers.argmax(axis=1) + 1, FAR)


def interval(gains: NDArray[Any], scale: float = 100) -> str:
    """Return a mean difference with its bootstrap interval over questions."""
    rng = np.random.default_rng(0)
    means = scale * gains[rng.integers(0, len(gains), (SAMPLES, len(gains)))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    digits = 1 if scale > 1 else 4
    return f"{scale * gains.mean():+.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def compare(name: str, each: Decisions, scores_NF: NDArray[np.float32]) -> None:
    """Print how often the search and the decision are right, and what the decision changed."""
    first_NF = each.looks_NFL[..., 0]
    search_N, decided_N = (
        ranks_of(np.where(first_NF, scores, MISSING), each.right_NF & first_NF)
        for scores in (each.search_NF, scores_NF)
    )
    masks = {"all": np.ones(len(search_N), bool), "dominant": np.array([row["dominant"] for row in each.rows])}
    for which, mask in masks.items():
        if mask.any() and (which == "all" or not mask.all()):
            figures = (
                f"first {k}: {100 * (search_N[mask] <= k).mean():.1f} to {100 * (decided_N[mask] <= k).mean():.1f}, "
                f"{interval((decided_N[mask] <= k).astype(float) - (search_N[mask] <= k))}"
                for k in RANKS
            )
            print(f"{name}, {which} ({mask.sum()}):", *figures, sep="\n    ")
    changed = np.where(first_NF, scores_NF, MISSING).argmax(axis=1) != np.where(
        first_NF, each.search_NF, MISSING
    ).argmax(axis=1)
    print(
        f"    another file than the search's first in {100 * changed.mean():.1f} %; then right in "
        f"{100 * (decided_N[changed] == 1).mean():.1f} %, the search in {100 * (search_N[changed] == 1).mean():.1f} %"
    )


def print_calibration(name: str, each: Decisions, scores_NF: NDArray[np.float32], sharpness: float) -> None:
    """Print how far the percentages of the first files are off, and how often the model says that it is not sure."""
    claimed_N, hit_N = claims(each, scores_NF, sharpness)
    unsure_N = claimed_N < UNSURE
    print(
        f"{name}: ECE {calibration_error(claimed_N, hit_N):.3f} (sharpness {sharpness:.2f}); not sure of "
        f"{100 * unsure_N.mean():.1f} %, right in {100 * hit_N[unsure_N].mean():.1f} % of these, "
        f"{100 * hit_N[~unsure_N].mean():.1f} % of the others"
    )


def report(paths: Sequence[Path]) -> None:
    """Print the figures of the shipped model."""
    with as_file(files("reflectrl.wings.autoexplore.locate").joinpath("data/decider.npz")) as path:
        model, sharpness = load_model(path)
    for path in paths:
        each = Decisions.load(path)
        scores_NF = scores_of(model, each)
        compare(path.stem, each, scores_NF)
        print_calibration(path.stem, each, scores_NF, sharpness)


def _save(model: nn.ModuleList, sharpness: float, path: Path) -> None:
    names = [name for name, _ in model[0].named_parameters()]
    weights = {name: np.stack([each.get_parameter(name).detach().numpy() for each in model]) for name in names}
    np.savez_compressed(path, **weights, sharpness=np.array(sharpness))


def load_model(path: Path) -> tuple[nn.ModuleList, float]:
    """Read a model that `fit` wrote: its networks and its sharpness."""
    with np.load(path, allow_pickle=False) as data:
        weights = {name: torch.from_numpy(data[name]) for name in data.files}
    sharpness, model = float(weights.pop("sharpness")), nn.ModuleList(Network() for _ in weights["out"])
    for index, network in enumerate(model):
        network.load_state_dict({name: array[index] for name, array in weights.items()})
    return model.eval(), sharpness


def fit(paths: Sequence[Path], held_out: Sequence[Path], out: Path | None, folds_folder: Path | None) -> None:
    """Print figures of cross-validation and of held-out sets, and write the weights of a fit to everything."""
    sets, others = [Decisions.load(path) for path in paths], [Decisions.load(path) for path in held_out]
    models = fit_folds(sets)
    scored = crossed(sets, models)
    model = train_all([(each, np.ones(len(each.rows), bool)) for each in sets])
    all_scored = [
        *zip(paths, sets, scored, strict=True),
        *((path, each, scores_of(model, each)) for path, each in zip(held_out, others, strict=True)),
    ]
    for path, each, scores in all_scored:
        compare(path.stem, each, scores)
    sharpness = fit_sharpness([(each, scores) for _, each, scores in all_scored])
    for path, each, scores in all_scored:
        print_calibration(path.stem, each, scores, sharpness)
    if out is not None:
        _save(model, sharpness, out)
    if folds_folder is not None:
        for fold, of_fold in enumerate(models):
            _save(of_fold, sharpness, folds_folder / f"decider-{fold}.npz")


def main(words: Sequence[str] | None = None) -> None:
    """Collect, fit or report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("questions", type=Path)
    collecting.add_argument("--trees", type=Path, required=True)
    collecting.add_argument("--sets", nargs="+", type=Path, required=True)
    collecting.add_argument("--folds", type=Path, required=True)
    collecting.add_argument("--out", type=Path, required=True)
    fitting = verbs.add_parser("fit")
    fitting.add_argument("sets", nargs="+", type=Path)
    fitting.add_argument("--held-out", nargs="*", type=Path, default=[], help="further sets for the percentages alone")
    fitting.add_argument("--out", type=Path)
    fitting.add_argument("--folds", type=Path, help="folder for the weights of each fold")
    verbs.add_parser("report").add_argument("sets", nargs="+", type=Path)
    args = parser.parse_args(words)
    if args.verb == "collect":
        collect(args.questions, args.trees, args.sets, args.folds, args.out)
    elif args.verb == "fit":
        fit(args.sets, args.held_out, args.out, args.folds)
    else:
        report(args.sets)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
