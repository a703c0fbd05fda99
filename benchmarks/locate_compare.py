"""Compare `locate` with other searches on the same files and questions, with paired bootstrap intervals.

    python -m benchmarks.locate_ranker fit swe-qa.npz train.npz --folds FOLDS
    python -m benchmarks.locate_decision fit DECISIONS.npz ... --folds FOLDS
    python -m benchmarks.locate_compare MINED/test.jsonl --trees MINED/trees --sets swe-qa.npz train.npz --folds FOLDS
    python -m benchmarks.locate_compare swe-qa.jsonl --trees REPOS --sets swe-qa.npz train.npz --folds FOLDS --most 1000

Repositories of the sets are ranked with the weights of the fold that left them out, others with those in the package.
Beside `locate`: its search without the decision model, the same without word vectors, its first code file, a sum of
grounds by hand, the shipped word vectors alone, BM25 over whole files (`bm25s`), BM25 over passages with the ranking of
`semble` (without its model), ripgrep (`rg`), and the first code file of BM25. Searches that are not installed are
reported and left out. Needs `pip install bm25s semble`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.locate_ranker import (
    PLAIN,
    SMALLEST_TREE,
    Set,
    calibration_error,
    folds,
    tree_of,
)
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate import kinds
from reflectrl.wings.autoexplore.locate.decision import Decider
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.grounds import COLUMNS, Candidates
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.meaning import Meaning, shipped_vectors
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.ranker import ABLATIONS, Ranker, shipped_ranker
from reflectrl.wings.autoexplore.making.imported import gold_files
from reflectrl.wings.autoexplore.words import count_words, words

FIRST = (1, 5)
SAMPLES = 5000
LONGEST = 64
"""Number of files of each ranking that are looked at."""
SHORTEST_WORD = 3
RRF = 60
BY_HAND = {"passage bm25": 1.0, "identifiers defined": 0.3, "meaning name": 0.5, "meaning names": 0.5, "stem": 0.3}
"""Weights of a sum by hand, each ground as a share of the best candidate's; code counts 0.3 more, a test 0.5 less."""
Order = list[str]
Search = Callable[[str], Order]


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask every question of every search, and print a line per search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("questions", type=Path)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", type=Path, required=True)
    parser.add_argument("--folds", type=Path, required=True)
    parser.add_argument("--most", type=int, default=25, help="questions about each repository")
    parser.add_argument("--out", type=Path, help="write the rank of the answer in every search, a line per question")
    args = parser.parse_args(arguments)
    rows = [json.loads(line) for line in args.questions.read_text(encoding="utf-8").splitlines()]
    rankers = Rankers([Set.load(path) for path in args.sets], args.folds)
    results: list[dict[str, object]] = []
    for name in dict.fromkeys(row["repo"] for row in rows):
        root = tree_of(name, args.trees)
        engine = rankers.engine(root, name) if root is not None else None
        if engine is None or root is None or len(engine.index.corpus) < SMALLEST_TREE:
            print(f"{name}: no tree, or too few files")
            continue
        searches = baselines(engine, root)
        repo_rows = [row for row in rows if row["repo"] == name][: args.most]
        for row in repo_rows:
            gold = gold_files(row["gold"], engine.index.corpus.paths)
            inquiry = Inquiry.of(row["question"])
            if gold and inquiry.forms:
                orders, claimed = rankers.orders(engine, inquiry, name)
                orders |= {arm: search(row["question"]) for arm, search in searches.items()}
                ranks = {arm: _rank(order, gold) for arm, order in orders.items()}
                about = {"repo": name, "dominant": bool(row.get("dominant")), "claimed": claimed}
                results.append(about | {"ranks": ranks})
        print(f"{name}: {sum(each['repo'] == name for each in results)} questions", flush=True)
        if args.out is not None:
            args.out.write_text("".join(json.dumps(each) + "\n" for each in results), encoding="utf-8")
    report(results)


class Rankers:
    """The shipped ranker, or for the repositories of a set those that were fitted without questions about them.

    Args:
        sets: the sets of the fit.
        fitted: folder that `locate_ranker fit --folds` and `locate_decision fit --folds` wrote.
    """

    def __init__(self, sets: Sequence[Set], fitted: Path) -> None:
        self._folds, self._folder = folds(sets), fitted
        self._kept = np.array([name not in ABLATIONS[PLAIN] for name in COLUMNS], np.float32)

    def engine(self, root: Path, repository: str) -> Engine:
        """Return the engine of a repository, with ranker and decision model that never saw a question about it."""
        fold = self._fold(repository)
        if fold is None:
            return Engine(root)
        decider = Decider(dict(np.load(self._folder / f"decider-{fold}.npz")), shipped_vectors())
        return Engine(root, ranker=_load(self._folder, f"{fold}.npz"), decider=decider)

    def orders(self, engine: Engine, inquiry: Inquiry, repository: str) -> tuple[dict[str, Order], float]:
        """Return the rankings of `locate` and of what it is made of, and the probability claimed for its first file."""
        candidates, paths = engine.candidates(inquiry), engine.index.corpus.paths
        candidate_paths = [paths[file] for file in candidates.files.tolist()]
        fold = self._fold(repository)
        ranker = shipped_ranker() if fold is None else _load(self._folder, f"{fold}.npz")
        plain = _load(self._folder, f"{len(self._folds) if fold is None else fold}-plain.npz")
        order = _sorted(candidate_paths, ranker.scores(candidates.grounds))
        hits = engine.search(inquiry.text, LONGEST)
        orders = {
            "locate": [hit.path for hit in hits],
            "the search alone": order,
            "first code file of the search": code_first(order),
            "the search without word vectors": _sorted(candidate_paths, plain.scores(candidates.grounds * self._kept)),
            "sum of grounds by hand": _sorted(candidate_paths, _by_hand(candidates)),
        }
        return orders, max((hit.probability or 0.0 for hit in hits), default=0.0)

    def _fold(self, repository: str) -> int | None:
        return next((i for i, names in enumerate(self._folds) if repository in names), None)


@cache
def _load(folder: Path, name: str) -> Ranker:
    return Ranker(dict(np.load(folder / name)))


def _sorted(paths: Sequence[str], scores: NDArray[np.float32]) -> Order:
    return [paths[i] for i in np.argsort(-scores, kind="stable").tolist()]


def _by_hand(candidates: Candidates) -> NDArray[np.float32]:
    grounds = candidates.grounds
    total = 0.3 * grounds[:, COLUMNS.index("kind code")] - 0.5 * grounds[:, COLUMNS.index("test")]
    for name, weight in BY_HAND.items():
        column = grounds[:, COLUMNS.index(name)]
        total = total + weight * column / max(float(column.max(initial=0.0)), 1e-6)
    return np.asarray(total, np.float32)


def code_first(paths: Sequence[str]) -> Order:
    """Return the files in the same order, but code before everything else."""
    return sorted(paths, key=lambda path: kinds.kind_of(path)[0] != kinds.CODE)


def baselines(engine: Engine, root: Path) -> dict[str, Search]:
    """Return the other searches that are installed, over the same files."""
    read = ((path, engine.index.read(path)) for path in engine.index.corpus.paths)
    files = [file for _, file in read if file is not None]
    searches: dict[str, Search] = {"word vectors alone": _by_vectors(files, shipped_vectors())}
    for name, make in (("BM25 (bm25s)", _by_bm25s), ("semble's ranking", _by_semble)):
        try:
            searches[name] = make(files)
        except ImportError as error:
            print(f"{name} is left out: {error}")
    if "BM25 (bm25s)" in searches:
        searches["BM25, first code file"] = lambda question: code_first(searches["BM25 (bm25s)"](question))
    if shutil.which("rg"):
        searches["ripgrep"] = partial(_by_ripgrep, root, {file.path for file in files})
    return searches


def _by_vectors(files: Sequence[ReadFile], meaning: Meaning) -> Search:
    """Rank files by the passage whose vector is most similar to the question's."""
    passages = [
        count_words(file.passage_text(passage_index)) for file in files for passage_index in range(len(file.names))
    ]
    owners = np.repeat(np.arange(len(files)), [len(file.names) for file in files])
    vectors = meaning.groups(passages, {})

    def search(question: str) -> Order:
        best = np.full(len(files), -1.0, np.float32)
        np.maximum.at(best, owners, vectors @ meaning.of(dict.fromkeys(words(question), 1.0)))
        return [files[file_index].path for file_index in np.argsort(-best, kind="stable")[:LONGEST].tolist()]

    return search


def _by_bm25s(files: Sequence[ReadFile]) -> Search:
    import bm25s

    index = bm25s.BM25()
    texts = [f"{file.path}\n{file.text}" for file in files]
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def search(question: str) -> Order:
        tokens = bm25s.tokenize(question, show_progress=False)
        file_indices, scores = index.retrieve(tokens, k=min(LONGEST, len(files)), show_progress=False)
        return [
            files[file_index].path
            for file_index, score in zip(file_indices[0].tolist(), scores[0], strict=True)
            if score > 0
        ]

    return search


def _by_semble(files: Sequence[ReadFile]) -> Search:
    """Rank passages by semble's BM25 and its boosts and penalties. The weight of its model is 0."""
    from semble.index.bm25 import BM25
    from semble.ranking import apply_query_boost, boost_multi_chunk_files, rerank_topk
    from semble.tokens import tokenize
    from semble.types import Chunk

    chunks = [Chunk(file.passage_text(i), file.path, *file.span(i)) for file in files for i in range(len(file.names))]
    index = BM25.empty()
    for i, chunk in enumerate(chunks):
        index.add_document(str(i), tokenize(f"{chunk.content} {Path(chunk.file_path).stem} {chunk.file_path}"))
    index.set_doc_order([str(i) for i in range(len(chunks))])

    def search(question: str) -> Order:
        scores = index.get_scores(tokenize(question))
        best = [
            chunk_index
            for chunk_index in np.argsort(-scores, kind="stable")[: 5 * LONGEST].tolist()
            if scores[chunk_index] > 0
        ]
        fused = {chunks[chunk_index]: 1.0 / (RRF + rank) for rank, chunk_index in enumerate(best, 1)}
        boost_multi_chunk_files(fused)
        ranked = rerank_topk(apply_query_boost(fused, question, chunks), LONGEST, penalise_paths=True)
        return list(dict.fromkeys(chunk.file_path for chunk, _ in ranked))

    return search


def _by_ripgrep(root: Path, searched: set[str], question: str) -> Order:
    """Rank files by the number of lines with a word of the question, as `rg` counts them."""
    terms = dict.fromkeys(word for word in re.findall(r"\w+", question.lower()) if len(word) > SHORTEST_WORD)
    command = ["rg", "--count", "--ignore-case", "--no-messages", "--sort", "path", "--hidden", "--no-ignore"]
    output = subprocess.run(
        [*command, "--word-regexp", "|".join(map(re.escape, terms)), "."], cwd=root, capture_output=True, check=False
    ).stdout.decode("utf-8", "replace")
    counts = [line.rpartition(":") for line in output.splitlines()]
    matches = [
        (path.removeprefix("./"), int(count)) for path, _, count in counts if path.removeprefix("./") in searched
    ]
    return [path for path, _ in sorted(matches, key=lambda pair: -pair[1])]


def _rank(order: Sequence[str], gold: set[str]) -> int:
    return next((rank for rank, path in enumerate(order, 1) if path in gold), 10**6)


def report(results: Sequence[Mapping[str, object]]) -> None:
    """Print accuracy and differences for all questions, and for questions that one file clearly answers."""
    _report("all questions", results)
    dominant = [each for each in results if each["dominant"]]
    if dominant:
        _report("dominant", dominant)
    claimed = np.array([each["claimed"] for each in results], float)
    hit = np.array([each["ranks"]["locate"] == 1 for each in results])  # type: ignore[index]
    print(f"ECE {calibration_error(claimed, hit):.3f}, mean claim {claimed.mean():.3f}, mean hit {hit.mean():.3f}")
    perfect = np.random.default_rng(0).random((500, len(claimed))) < claimed
    expected = np.mean([calibration_error(claimed, drawn) for drawn in perfect])
    print(f"ECE of claims that are perfectly calibrated, on as many questions: {expected:.3f}")


def _report(title: str, results: Sequence[Mapping[str, object]]) -> None:
    print(f"{title}: {len(results)} questions")
    arms: dict[str, NDArray[np.int64]] = {
        arm: np.array([each["ranks"][arm] for each in results])  # type: ignore[index]
        for arm in results[0]["ranks"]  # type: ignore[attr-defined]
    }
    samples = np.random.default_rng(0).integers(0, len(results), (SAMPLES, len(results)))
    for arm, ranks in arms.items():
        parts = [f"  {arm}"]
        for k in FIRST:
            better = (arms["locate"] <= k).astype(float) - (ranks <= k)
            low, high = np.percentile(better[samples].mean(axis=1) * 100, (2.5, 97.5))
            parts.append(
                f"acc@{k} {100 * (ranks <= k).mean():.1f} ({100 * better.mean():+.1f} [{low:.1f}, {high:.1f}])"
            )
        print(", ".join(parts))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
