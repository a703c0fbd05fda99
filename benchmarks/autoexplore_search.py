"""How often AutoExplore's search baselines find the right file: BM25 over whole files, over names only, over both.

    python -m benchmarks.autoexplore_search swe_qa.jsonl swe_smith.jsonl --repos DIR

Questions are JSON lines with `source`, `repo` (owner/name), `question` and `gold` (paths of files that answer it; one
of them suffices), and perhaps `dominant`. DIR holds a folder per repository, named like it, perhaps with a version
behind: `flask` or `Flask-3.0.0` for pallets/flask. A gold path may leave out leading folders if one file only ends
with it.

acc@k is the share of questions with a gold file among the first k, with Wilson's 95 % interval; MRR is the mean of
1 / rank of the first gold file (0 where it was not found). Questions without repository, or whose gold file is not
among the files to explore (another version, or filtered as a test, say), are counted and left out of these.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.envs.autoexplore.repository import Repository
from reflectrl.envs.autoexplore.search import Over, Search
from reflectrl.statistics import wilson
from reflectrl.types import UserError

BASELINES: dict[str, Over] = {"whole files": "files", "names only": "names", "both": "both"}
FIRST = (1, 3, 5)

Row = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A line of a file of questions."""

    source: str
    repo: str
    question: str
    gold: tuple[str, ...]
    dominant: bool

    def sources(self) -> list[str]:
        """The groups in which it is counted."""
        return [self.source, *([f"{self.source}, dominant"] if self.dominant else []), "all"]


@dataclass(frozen=True)
class Answer:
    """What became of a question."""

    question: Question
    candidates: int = 0
    """Files to explore; 0 where the repository is not there."""
    ranks: Mapping[str, int | None] | None = None
    """Baseline → rank of the first gold file, from 1 (None: not found); no ranks where no gold file can be found."""


def read_questions(files: Iterable[Path]) -> list[Question]:
    """The questions of several files; UserError names the line that is none."""
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                gold = tuple(row["gold"])
                found.append(Question(row["source"], row["repo"], row["question"], gold, row.get("dominant", False)))
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}, line {number} is no question: {error!r}") from error
    return found


def ask(questions: Iterable[Question], repos: Path) -> list[Answer]:
    """Ask all baselines, repository by repository."""
    answers = []
    for name, asked in _by_repo(questions).items():
        root = find_repo(name, repos)
        if root is None:
            answers += [Answer(question) for question in asked]
            continue
        print(f"{name}: {len(asked)} questions", file=sys.stderr, flush=True)
        repository = Repository.open(root)
        searches = {name: Search(repository, over) for name, over in BASELINES.items()}
        answers += [_answer(question, repository, searches) for question in asked]
    return answers


def find_repo(name: str, repos: Path) -> Path | None:
    """The folder of a repository (owner/name): named alike, or alike with a version behind; None if none or several."""
    wanted = _plain(name.rpartition("/")[2])
    named = {path: _plain(path.name) for path in sorted(repos.iterdir()) if path.is_dir()}
    same = [path for path, plain in named.items() if plain == wanted]
    versions = [path for path, plain in named.items() if re.fullmatch(rf"{re.escape(wanted)}-\d.*", plain)]
    found = same or versions
    return found[0] if len(found) == 1 else None


def gold_files(gold: Iterable[str], files: Sequence[str]) -> set[str]:
    """The files that gold paths mean, leading folders being left out where that is unambiguous."""
    found = set()
    for path in gold:
        ending = [path] if path in files else [file for file in files if file.endswith(f"/{path}")]
        found.update(ending if len(ending) == 1 else ())
    return found


def rows(answers: Sequence[Answer]) -> list[Row]:
    """One row per source and baseline, and the counts of what was left out."""
    sources = list(dict.fromkeys(source for answer in answers for source in answer.question.sources()))
    sources.sort(key="all".__eq__)  # last
    return [
        _row(source, baseline, [answer for answer in answers if source in answer.question.sources()])
        for source in sources
        for baseline in BASELINES
    ]


def _row(source: str, baseline: str, answers: Sequence[Answer]) -> Row:
    asked = [answer.ranks[baseline] for answer in answers if answer.ranks is not None]
    row: Row = {"source": source, "baseline": baseline, "questions": len(asked)}
    for k in FIRST:
        found = sum(rank is not None and rank <= k for rank in asked)
        low, high = wilson(found, len(asked), 0.95)
        row |= {f"acc@{k}": found / len(asked) if asked else None, f"95 % of @{k}": f"{low:.3f} to {high:.3f}"}
    row["MRR"] = sum(1 / rank for rank in asked if rank) / len(asked) if asked else None
    row["no repository"] = sum(not answer.candidates for answer in answers)
    row["gold not there"] = sum(bool(answer.candidates) and answer.ranks is None for answer in answers)
    return row


def _by_repo(questions: Iterable[Question]) -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    for question in questions:
        found.setdefault(question.repo, []).append(question)
    return found


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


def _plain(name: str) -> str:
    """A name as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(words: Sequence[str] | None = None) -> None:
    """Ask, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("questions", type=Path, nargs="+", help="files of questions, JSON lines")
    parser.add_argument("--repos", type=Path, required=True, help="folder with a folder per repository")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args(words)
    found = rows(ask(read_questions(asked.questions), asked.repos))
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    from .measure import report

    print(report(found, False), end="")


if __name__ == "__main__":
    main()
