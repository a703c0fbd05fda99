"""Success of AutoExplore's search baselines in finding the right file: BM25 over whole files, names, or both.

    python -m benchmarks.autoexplore_search swe_qa.jsonl swe_smith.jsonl --repos DIR
    python -m benchmarks.autoexplore_search test swe-qa --library            (or --library DIR)

Questions are JSON lines with `source`, `repo` (owner/name), `question` and `gold` (paths of files that answer it; any
one suffices), and optionally `dominant`. DIR holds a folder per repository with its name, optionally followed by a
version: `flask` or `Flask-3.0.0` for pallets/flask. A gold path may leave out leading folders if only one file ends
with it. With --library, name sets of questions that `reflectrl data autoexplore` has made or imported.

acc@k is the share of questions with a gold file among the first k, with Wilson's 95 % interval. MRR is the mean of 1 /
rank of the first gold file (0 if it was not found). Two kinds of questions are left out and counted separately: those
without a repository, and those whose gold file is not among the files to explore (for instance in another version, or
filtered as a test).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core.statistics import wilson
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.library import open_library
from reflectrl.wings.autoexplore.making.imported import by_repo, find_repo, gold_files, read_imported
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import Over, Search

BASELINES: dict[str, Over] = {"whole files": "files", "names only": "names", "both": "both"}
FIRST = (1, 3, 5)

Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """Result of the baselines for a question."""

    question: Question
    candidates: int = 0
    """Number of files to explore; 0 if the repository is missing."""
    ranks: Mapping[str, int | None] | None = None
    """Rank of the first gold file by baseline, from 1 (None: not found). None for all if no gold file exists."""


def sources(question: Question) -> list[str]:
    """Return the groups in which a question is counted."""
    return [question.source, *([f"{question.source}, dominant"] if question.dominant else []), "all"]


def ask(questions: Iterable[Question], find: Callable[[str], Repository | None]) -> list[Answer]:
    """Ask all baselines, repository by repository."""
    answers = []
    for name, repo_questions in by_repo(questions).items():
        repository = find(name)
        if repository is None:
            answers += [Answer(question) for question in repo_questions]
            continue
        print(f"{name}: {len(repo_questions)} questions", file=sys.stderr, flush=True)
        searches = {name: Search(repository, over) for name, over in BASELINES.items()}
        answers += [_answer(question, repository, searches) for question in repo_questions]
    return answers


def rows(answers: Sequence[Answer]) -> list[Row]:
    """Return one row per source and baseline, with counts of the questions left out."""
    source_names = list(dict.fromkeys(source for answer in answers for source in sources(answer.question)))
    source_names.sort(key="all".__eq__)  # last
    return [
        _row(source, baseline, [answer for answer in answers if source in sources(answer.question)])
        for source in source_names
        for baseline in BASELINES
    ]


def _row(source: str, baseline: str, answers: Sequence[Answer]) -> Row:
    ranks = [answer.ranks[baseline] for answer in answers if answer.ranks is not None]
    row: Row = {"source": source, "baseline": baseline, "questions": len(ranks)}
    for k in FIRST:
        hits = sum(rank is not None and rank <= k for rank in ranks)
        low, high = wilson(hits, len(ranks), 0.95)
        row |= {f"acc@{k}": hits / len(ranks) if ranks else None, f"95 % of @{k}": f"{low:.3f} to {high:.3f}"}
    row["MRR"] = sum(1 / rank for rank in ranks if rank) / len(ranks) if ranks else None
    row["no repository"] = sum(not answer.candidates for answer in answers)
    row["gold not there"] = sum(bool(answer.candidates) and answer.ranks is None for answer in answers)
    return row


def _answer(question: Question, repository: Repository, searches: Mapping[str, Search]) -> Answer:
    gold = gold_files(question.gold, repository.files)
    if not gold:
        return Answer(question, len(repository))
    return Answer(question, len(repository), {name: _rank(each, question, gold) for name, each in searches.items()})


def _rank(search: Search, question: Question, gold: set[str]) -> int | None:
    try:
        ranked = search.rank(question.question)
    except UserError:  # a question of nothing but stop words finds nothing
        return None
    return next((rank for rank, (path, _) in enumerate(ranked, 1) if path in gold), None)


def _in_folder(name: str, repos: Path) -> Repository | None:
    root = find_repo(name, repos)
    return None if root is None else Repository.open(root)


def _answers(asked: argparse.Namespace) -> list[Answer]:
    if asked.library is not None:
        library = open_library(asked.library)
        return ask([each for split in asked.questions for each in library.questions(split)], library.repository)
    questions = [each for path in asked.questions for each in read_imported(Path(path))]
    return ask(questions, lambda name: _in_folder(name, asked.repos))


def main(words: Sequence[str] | None = None) -> None:
    """Run the baselines, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("questions", nargs="+", help="files of questions, JSON lines; of a library, its sets")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--repos", type=Path, help="folder with a folder per repository")
    where.add_argument("--library", nargs="?", const="", help="library to ask about, by default the usual one")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(words)
    table_rows = rows(_answers(args))
    if args.json:
        print(json.dumps(table_rows, indent=1))
        return
    from .measure import report

    print(report(table_rows, False), end="")


if __name__ == "__main__":
    main()
