"""Train and measure the reader of `locate --read`, which chooses among the search's first eight files.

    python -m benchmarks.locate_reader collect QUESTIONS.jsonl --trees DIR --sets SET.npz ... --folds FOLDS --out FILE
    python -m benchmarks.locate_reader train train.jsonl --out .../locate/data/reader.safetensors
    python -m benchmarks.locate_reader read dev.jsonl --out dev-read.jsonl [--adapter FILE]
    python -m benchmarks.locate_reader report dev-read.jsonl ...

`collect` writes what a reader sees of each question's first eight files. Repositories of the sets are ranked with the
weights of the fold that left them out (`locate_ranker fit --folds`), others with those in the package. `train`
maximizes the probability of the right file, in groups of it and up to three others, and learns a low-rank adapter of
the last twelve layers, the head, and the weights of search and likelihood. `read` judges the files, and can be
continued. `report` compares the choice with that of the search and its small decision model, by a paired bootstrap
over questions.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.locate_ranker import SMALLEST_TREE, Set, calibration_error, folds, tree_of
from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model
from reflectrl.models.sources import find_model
from reflectrl.wings.autoexplore.locate.decision import FIRST, Decider
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.excerpts import Excerpt
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.meaning import shipped_vectors
from reflectrl.wings.autoexplore.locate.ranker import Ranker, shipped_ranker, softmax
from reflectrl.wings.autoexplore.locate.reader import (
    BASE,
    SCALE,
    SHARPNESS,
    UNSURE,
    Reader,
    judge,
    prompt,
)
from reflectrl.wings.autoexplore.making.imported import gold_files

RANK, ADAPTED_LAYERS = 8, 12
GROUP = 4
"""Number of files of a training question: the right one, and the wrong ones that the search ranks best."""
SAMPLED = 0.4
"""Share of questions whose wrong files are sampled instead."""
BATCH = 8
START = (0.8, 2.5)
"""Weights of search and likelihood before training: fitted to the untrained model's first 119 questions of SWE-QA."""
RATE, HEAD_RATE, SHARES_RATE = 5e-4, 1e-3, 5e-3
WARM_UP, LAST_RATE = 10, 0.1
SAVE_EVERY = 50
SAMPLES = 5000
UNTRAINED = Path("untrained")
RANKS = (1, 3, 5)
Row = dict[str, Any]


def main(words: Sequence[str] | None = None) -> None:
    """Collect, train, read or report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("questions", type=Path)
    collecting.add_argument("--trees", type=Path, required=True)
    collecting.add_argument("--sets", nargs="+", type=Path, required=True)
    collecting.add_argument("--folds", type=Path, required=True)
    collecting.add_argument("--most", type=int, default=1000, help="questions about each repository")
    training = verbs.add_parser("train")
    training.add_argument("file", type=Path)
    training.add_argument("--questions", type=int, default=2400, help="number of training questions")
    reading = verbs.add_parser("read")
    reading.add_argument("file", type=Path)
    reading.add_argument("--adapter", type=Path, help='by default the one in the package; or "untrained"')
    reading.add_argument("--most", type=int, default=1000, help="questions about each repository")
    for each in (collecting, training, reading):
        each.add_argument("--out", type=Path, required=True)
    verbs.add_parser("report").add_argument("files", nargs="+", type=Path)
    args = parser.parse_args(words)
    match args.verb:
        case "collect":
            collect(args.questions, args.trees, args.sets, args.folds, args.most, args.out)
        case "train":
            train(_load(args.file), args.questions, args.out)
        case "read":
            read(_load(args.file), args.most, args.adapter, args.out)
        case _:
            for file in args.files:
                report(file.stem, _load(file))


# ---- what a reader sees ----------------------------------------------------------------------------------------------


def collect(questions: Path, trees: Path, sets: Sequence[Path], fitted: Path, most: int, out: Path) -> None:
    """Write the excerpts of each question's first files."""
    rows, left_out = _load(questions), folds([Set.load(path) for path in sets])
    with out.open("w", encoding="utf-8") as file:
        for name in dict.fromkeys(row["repo"] for row in rows):
            root = tree_of(name, trees)
            engine = Engine(root) if root is not None else None
            if engine is None or len(engine.index.corpus) < SMALLEST_TREE:
                print(f"{name}: no tree, or too few files")
                continue
            fold = next((i for i, names in enumerate(left_out) if name in names), None)
            ranker = shipped_ranker() if fold is None else Ranker(dict(np.load(fitted / f"{fold}.npz")))
            if fold is not None:
                engine.decider = Decider(dict(np.load(fitted / f"decider-{fold}.npz")), shipped_vectors())
            for row in [row for row in rows if row["repo"] == name][:most]:
                if (seen := _first_files(engine, ranker, row)) is not None:
                    file.write(json.dumps(seen) + "\n")


def _first_files(engine: Engine, ranker: Ranker, row: Row) -> Row | None:
    """Return the question with its first files; None if it has no answer here."""
    paths, inquiry = engine.index.corpus.paths, Inquiry.of(row["question"])
    gold = gold_files(row["gold"], paths)
    if not gold or not inquiry.forms:
        return None
    candidates = engine.candidates(inquiry)
    scores = ranker.scores(candidates.grounds)
    first = np.argsort(-scores, kind="stable")[:FIRST]
    excerpts = engine.excerpts(inquiry, candidates, first.tolist())
    decided = engine.decider.scores(candidates.weights, excerpts, scores[first])
    share = float(ranker.shares(scores)[first].sum())
    confidence = float(ranker.probabilities(share * softmax(decided * engine.decider.sharpness)).max())
    files = [
        {**asdict(excerpt), "right": excerpt.path in gold, "searched": searched, "score": score}
        for excerpt, searched, score in zip(excerpts, scores[first].tolist(), decided.tolist(), strict=True)
    ]
    about = {key: row[key] for key in ("id", "repo", "question")}
    return {**about, "dominant": bool(row.get("dominant")), "among_first": share, "claim": confidence, "files": files}


def excerpt_of(file: Row) -> Excerpt:
    """Return the excerpt of a file that `collect` wrote."""
    return Excerpt(file["path"], file["names"], file["naming"], file["lines"])


# ---- training --------------------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """Linear layer with a low-rank adapter: W x + SCALE · B A x."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        low: Tensor = functional.linear(functional.linear(x, self.A), self.B)
        return self.base(x) + SCALE * low


class Student(nn.Module):
    """Reader that learns."""

    def __init__(self) -> None:
        super().__init__()
        source = find_model(BASE)
        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.lm = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).requires_grad_(False)
        for layer in self.lm.model.layers[-ADAPTED_LAYERS:]:
            for block in (layer.self_attn, layer.mlp):
                for name, child in list(block.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(block, name, Adapted(child))
        self.head_D = nn.Parameter(torch.zeros(self.lm.config.hidden_size))
        self.shares = nn.Parameter(torch.tensor(START))

    def forward(self, question: str, files: Sequence[Row]) -> Tensor:
        """Return the sums of the search's and the reader's scores, (F,)."""
        prompts = [prompt(self.tokenizer.encode, question, excerpt_of(file)) for file in files]
        with torch.autocast("cpu", torch.bfloat16):
            likelihood_F, head_F = judge(self.lm, prompts, self.head_D)
        search_F = torch.tensor([file["score"] for file in files])
        return self.shares[0] * search_F + self.shares[1] * likelihood_F + head_F

    def weights(self) -> dict[str, Tensor]:
        """Return what `Reader.load` reads: adapter, head and shares, in bfloat16."""
        adapter = {
            name.removeprefix("lm."): weight for name, weight in self.named_parameters() if name.endswith((".A", ".B"))
        }
        named = {**adapter, "head": self.head_D, "shares": self.shares}
        return {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in named.items()}


def train(rows: Sequence[Row], most: int, out: Path) -> None:
    """Train in one pass over `most` questions where the search is unsure, and write the adapter.

    The answer is among the first files of each.
    """
    torch.manual_seed(0)
    rng = random.Random(0)
    usable = [row for row in rows if row["claim"] < UNSURE and any(file["right"] for file in row["files"])]
    rng.shuffle(usable)
    usable, student, start = usable[:most], Student(), time.time()
    steps = len(usable) // BATCH
    adapter = [weight for weight in student.lm.parameters() if weight.requires_grad]
    groups = [(adapter, RATE), ([student.head_D], HEAD_RATE), ([student.shares], SHARES_RATE)]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "lr": rate} for weights, rate in groups], betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * (1 - (1 - LAST_RATE) * step / steps)
    )
    hits = list[bool]()
    for step in range(steps):
        for row in usable[step * BATCH : (step + 1) * BATCH]:
            scores_F = student(row["question"], _group(row["files"], rng))
            loss = -scores_F.log_softmax(0)[0] / BATCH
            loss.backward()
            hits.append(int(scores_F.argmax()) == 0)
        nn.utils.clip_grad_norm_(adapter, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(
            f"step {step + 1} of {steps}: right in {np.mean(hits[-200:]):.3f} of the last groups, "
            f"{time.time() - start:.0f} s",
            flush=True,
        )
        if (step + 1) % SAVE_EVERY == 0:
            save_file(student.weights(), out)
    save_file(student.weights(), out)


def _group(files: Sequence[Row], rng: random.Random) -> list[Row]:
    """Return a right file, then wrong ones."""
    right = [file for file in files if file["right"]]
    wrong = [file for file in files if not file["right"]]
    count = min(GROUP - 1, len(wrong))
    compared = rng.sample(wrong, count) if rng.random() < SAMPLED else wrong[:count]
    return [rng.choice(right), *compared]


# ---- measuring -------------------------------------------------------------------------------------------------------


def untrained() -> Reader:
    """Return the model as it is, without adapter and head, and with the weights from which training starts."""
    lm = load_model(BASE, ModelConfig(mixed_play="auto", chat="off"))
    return Reader(lm, torch.zeros(lm.hidden_size), START)


def read(rows: Sequence[Row], most: int, adapter: Path | None, out: Path) -> None:
    """Judge the files of each question where the decision model is unsure, after those that `out` holds already."""
    reader = untrained() if adapter == UNTRAINED else Reader.load(adapter=adapter)
    done = {row["id"] for row in _load(out)} if out.exists() else set()
    for row in _each(rows, most):
        if row["id"] in done:
            continue
        decided = np.array([file["score"] for file in row["files"]], np.float32)
        judged: Row = {
            "searched": [file["searched"] for file in row["files"]],
            "decided": decided.tolist(),
            "total": decided.tolist(),
            "right": [file["right"] for file in row["files"]],
        }
        if row["claim"] < UNSURE:
            start = time.process_time()
            likelihood, head = reader.judge(row["question"], list(map(excerpt_of, row["files"])))
            judged["seconds"] = time.process_time() - start
            judged["total"] = reader.total(decided, likelihood, head).tolist()
            judged |= {"likelihood": likelihood.tolist(), "head": head.tolist()}
        about = {key: row[key] for key in ("id", "repo", "dominant", "among_first", "claim")}
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | judged) + "\n")


def _each(rows: Sequence[Row], most: int) -> Iterator[Row]:
    """Yield the first `most` questions about each repository."""
    count = Counter[str]()
    for row in rows:
        count[row["repo"]] += 1
        if count[row["repo"]] <= most:
            yield row


def report(name: str, rows: Sequence[Row]) -> None:
    """Print how often search, decision model and reader are right, what the reader adds, and what it changed."""
    ranks = {arm: np.array([_rank(row[arm], row["right"]) for row in rows]) for arm in ("searched", "decided", "total")}
    is_read = np.array([row["claim"] < UNSURE for row in rows])
    seconds = np.median([row["seconds"] for row in rows if "seconds" in row])
    print(f"{name}: {len(rows)} questions, {100 * is_read.mean():.0f} % read, {seconds:.1f} processor seconds each")
    masks = {"all": np.ones(len(rows), bool), "dominant": np.array([row["dominant"] for row in rows])}
    for which, mask in masks.items():
        if mask.any() and not (which == "dominant" and mask.all()):
            print(f"  {which} ({mask.sum()}), the reader beside the decision model, then beside the search:")
            for other in ("decided", "searched"):
                print(*(_compared(k, ranks[other][mask], ranks["total"][mask]) for k in RANKS), sep="; ")
    differs = np.array([np.argmax(row["total"]) != np.argmax(row["decided"]) for row in rows])
    print(
        f"  chose another than the decision model: {100 * differs.mean():.1f} %; then the reader was right in "
        f"{100 * (ranks['total'][differs] == 1).mean():.1f} %, the decision model in "
        f"{100 * (ranks['decided'][differs] == 1).mean():.1f} %"
    )
    claimed = np.array([_confidence(row) if row["claim"] < UNSURE else row["claim"] for row in rows])
    print(
        f"  claims {100 * claimed.mean():.1f} % on average, ECE {calibration_error(claimed, ranks['total'] == 1):.3f}"
    )


def _confidence(row: Row) -> float:
    """Return the probability that `locate --read` prints for its first file."""
    parts = np.exp(SHARPNESS * (np.array(row["total"]) - max(row["total"])))
    share = np.float32(row["among_first"] * parts.max() / parts.sum())
    return float(shipped_ranker().probabilities(np.array([share]))[0])


def _compared(k: int, before: NDArray[np.int64], after: NDArray[np.int64]) -> str:
    gains = (after <= k).astype(float) - (before <= k)
    rng = np.random.default_rng(0)
    sampled = 100 * gains[rng.integers(0, len(gains), (SAMPLES, len(gains)))].mean(axis=1)
    low, high = np.percentile(sampled, (2.5, 97.5))
    return (
        f"first {k}: {100 * (before <= k).mean():.1f} to {100 * (after <= k).mean():.1f}, "
        f"{100 * gains.mean():+.1f} [{low:.1f}, {high:.1f}]"
    )


def _rank(scores: Sequence[float], right: Sequence[bool]) -> int:
    """Return the rank of the first right file, from 1; a large number if none is right."""
    order = np.argsort(-np.array(scores), kind="stable")
    answers = np.array(right)[order]
    return int(answers.argmax()) + 1 if answers.any() else 10**6


def _load(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
