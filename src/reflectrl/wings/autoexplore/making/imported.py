"""Questions of others about well-known repositories: JSON lines with owner/name, question, and files that answer it.

{"id": "django-3", "source": "swe-qa", "repo": "django/django", "question": "...", "gold": ["db/models/query.py"]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.envs.base import SPLITS
from reflectrl.types import UserError
from reflectrl.wings.autoexplore.questions import Question, question_of, rows_of
from reflectrl.wings.autoexplore.repository import Repository


def read_imported(path: Path) -> list[Question]:
    """The questions of a file as they stand: `repo` is owner/name, and gold paths may lack leading folders.

    `id` and `source` may be missing; then lines are numbered, and the file's name is the source.

    Raises:
        UserError: the file cannot be read, or a line is no question; then the line is named.
    """
    defaults = {"source": path.stem.replace("_", "-")}
    return [
        question_of({**defaults, "id": f"{path.stem}-{number}", **row} if isinstance(row, dict) else row, place)
        for number, (row, place) in enumerate(rows_of(path))
    ]


def set_name(questions: Sequence[Question], path: Path) -> str:
    """What a set is called: as the source of its questions, if that is one, else as its file.

    Raises:
        UserError: that is the name of a split, or none that a file can have.
    """
    sources = {question.source for question in questions}
    name = sources.pop() if len(sources) == 1 else path.stem.replace("_", "-")
    if name in SPLITS or not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"{path}: its questions cannot be called {name!r}; rename the file, or their source")
    return name


def find_repo(name: str, repos: Path) -> Path | None:
    """The folder of a repository (owner/name): named alike, or alike with a version behind; None if none or several."""
    try:
        named = {path: plain_name(path.name) for path in sorted(repos.iterdir()) if path.is_dir()}
    except OSError as error:
        raise UserError(f"{repos} cannot be read: {error.strerror}") from error
    wanted = plain_name(name.rpartition("/")[2])
    same = [path for path, plain in named.items() if plain == wanted]
    versions = [path for path, plain in named.items() if re.fullmatch(rf"{re.escape(wanted)}-\d.*", plain)]
    found = same or versions
    return found[0] if len(found) == 1 else None


def plain_name(name: str) -> str:
    """A name as package indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def gold_files(gold: Iterable[str], files: Sequence[str]) -> set[str]:
    """The files that gold paths mean, where that is unambiguous.

    A path may lack leading folders if one file only ends with it, and may have some that a package does not have
    ("lib/matplotlib/axis.py" is "matplotlib/axis.py" in a wheel).
    """
    known = set(files)
    found = set()
    for path in gold:
        ending = [path] if path in known else [file for file in files if file.endswith(f"/{path}")]
        head, _, rest = path.partition("/")
        if len(ending) == 1:
            found.add(ending[0])
        elif head in ("src", "lib") and rest in known:
            found.add(rest)
    return found


def matched(
    questions: Iterable[Question], repositories: Mapping[str, tuple[str, str, Repository]]
) -> tuple[list[Question], Counter[str]]:
    """Questions whose repository and gold files are there, in terms of the library.

    Args:
        questions: as they were read.
        repositories: owner/name → the name in the library, its licence, and the files.

    Returns:
        The questions, gold paths being those of the library; and reason → how many were left out for it.
    """
    found: list[Question] = []
    left_out: Counter[str] = Counter()
    for question in questions:
        if question.repo not in repositories:
            left_out["no repository"] += 1
            continue
        name, licence, repository = repositories[question.repo]
        gold = tuple(sorted(gold_files(question.gold, repository.files)))
        if not gold:
            left_out["gold file not there"] += 1
            continue
        found.append(replace(question, repo=name, gold=gold, licence=licence))
    return found, left_out


def by_repo(questions: Iterable[Any]) -> dict[str, list[Any]]:
    """Questions by the repository that they ask about, in their order."""
    found: dict[str, list[Any]] = {}
    for question in questions:
        found.setdefault(question.repo, []).append(question)
    return found
