"""Import questions about well-known repositories from JSON lines: owner/name, question, and files that answer it.

{"id": "django-3", "source": "swe-qa", "repo": "django/django", "question": "...", "gold": ["db/models/query.py"]}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.core.envs.base import SPLITS
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.making.dropped import Dropped
from reflectrl.wings.autoexplore.questions import Question, question_of, rows_of
from reflectrl.wings.autoexplore.repository import Repository


def read_imported(path: Path) -> list[Question]:
    """Read the questions of a file unchanged: `repo` is owner/name, and gold paths may lack leading folders.

    If `id` is missing, the file's name and the row's position (from 0) are used; for `source`, the file's name. A
    question may name no gold path; `matched` leaves it out.

    Raises:
        UserError: the file cannot be read, or a line is not a question. The message names the line.
    """
    defaults = {"source": path.stem.replace("_", "-")}
    return [
        question_of(
            {**defaults, "id": f"{path.stem}-{index}", **row} if isinstance(row, dict) else row,
            location,
            answered=False,
        )
        for index, (row, location) in enumerate(rows_of(path))
    ]


def set_name(questions: Sequence[Question], path: Path) -> str:
    """Return the name of a set: the source of its questions if they share one, else the name of its file.

    Raises:
        UserError: the name is the name of a split, or not a valid file name.
    """
    sources = {question.source for question in questions}
    name = sources.pop() if len(sources) == 1 else path.stem.replace("_", "-")
    if name in SPLITS or not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"{path}: its questions cannot be called {name!r}; rename the file, or their source")
    return name


def find_repo(name: str, repos: Path) -> Path | None:
    """Return the folder of a repository (owner/name), by name, or name and version; None unless it is unique."""
    try:
        named = {path: plain_name(path.name) for path in sorted(repos.iterdir()) if path.is_dir()}
    except OSError as error:
        raise UserError(f"{repos} cannot be read: {error.strerror}") from error
    wanted = plain_name(name.rpartition("/")[2])
    same = [path for path, plain in named.items() if plain == wanted]
    versions = [path for path, plain in named.items() if re.fullmatch(rf"{re.escape(wanted)}-\d.*", plain)]
    matches = same or versions
    return matches[0] if len(matches) == 1 else None


def plain_name(name: str) -> str:
    """Normalize a name as package indexes do (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def gold_files(gold: Iterable[str], files: Sequence[str]) -> set[str]:
    """Resolve gold paths to files of the repository. Ambiguous paths are dropped.

    A path may lack leading folders if exactly one file ends with it. It may also have a leading folder that a package
    lacks ("lib/matplotlib/axis.py" is "matplotlib/axis.py" in a wheel).
    """
    existing = set(files)
    resolved = set()
    for path in gold:
        ending = [path] if path in existing else [file for file in files if file.endswith(f"/{path}")]
        head, _, rest = path.partition("/")
        if len(ending) == 1:
            resolved.add(ending[0])
        elif head in ("src", "lib") and rest in existing:
            resolved.add(rest)
    return resolved


def matched(
    questions: Iterable[Question], repositories: Mapping[str, tuple[str, str, Repository]]
) -> tuple[list[Question], list[Dropped]]:
    """Translate questions to the names of the library, and drop questions without a repository or gold file.

    Args:
        questions: questions from `read_imported`.
        repositories: owner/name → name in the library, licence, and files.

    Returns:
        The questions with the library's gold paths, and the questions that were left out.
    """
    translated: list[Question] = []
    left_out: list[Dropped] = []
    for question in questions:
        name, licence, repository = repositories.get(question.repo, ("", "", None))
        gold = gold_files(question.gold, repository.files) if repository else set()
        if not question.gold:
            reason = "no gold file is named"
        elif repository is None:
            reason = "no repository"
        elif not gold:
            reason = "gold file not there"
        else:
            translated.append(replace(question, repo=name, gold=tuple(sorted(gold)), licence=licence))
            continue
        left_out.append(Dropped(question.id, "import", reason, question.question))
    return translated, left_out


def by_repo(questions: Iterable[Any]) -> dict[str, list[Any]]:
    """Group questions by repository. The order is kept."""
    groups: dict[str, list[Any]] = {}
    for question in questions:
        groups.setdefault(question.repo, []).append(question)
    return groups
