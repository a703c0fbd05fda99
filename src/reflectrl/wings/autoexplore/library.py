"""A library: repositories, and questions about them, as `reflectrl data autoexplore` makes it.

repos.jsonl                 a line per repository (`RepoEntry`)
repos/NAME/...              the repository, unless its entry says that it lies elsewhere
questions/SPLIT.jsonl       train, validation, test, and one for every imported set (swe-qa, say)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

from reflectrl.config.folders import data_folder
from reflectrl.envs.base import SPLITS
from reflectrl.types import UserError
from reflectrl.wings.autoexplore.questions import Question, read_questions, rows_of
from reflectrl.wings.autoexplore.repository import Repository

REPOS, QUESTIONS = "repos.jsonl", "questions"
IMPORTED = "imported"
"""The split of repositories that only imported questions ask about."""
VERB = "reflectrl data autoexplore"


@dataclass(frozen=True)
class RepoEntry:
    """What is known of a repository."""

    name: str
    """Its name in the library, and that of its folder under `repos`."""
    version: str
    """Of the release; of a git clone, its commit; "" where neither is known."""
    origin: str
    """Where it came from: an address, or a path."""
    licence: str
    split: str
    """train, validation, test, or `IMPORTED`."""
    path: str = ""
    """Where it lies, if not in the library."""


class Library:
    """An open library; `open_library` makes one.

    Args:
        folder: where it lies.

    Raises:
        UserError: it is damaged; the message names the file and the line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        entries = [_entry_of(row, place) for row, place in rows_of(folder / REPOS)]
        self.repos: Mapping[str, RepoEntry] = MappingProxyType({entry.name: entry for entry in entries})
        """Every repository by its name."""
        found = sorted(path.stem for path in (folder / QUESTIONS).glob("*.jsonl"))
        self.splits = (
            *(split for split in SPLITS if split in found),
            *(split for split in found if split not in SPLITS),
        )
        """Which sets of questions there are: the splits, then the imported sets."""
        self.questions = cache(self._questions)
        self.repository = cache(self._repository)

    def _questions(self, split: str) -> tuple[Question, ...]:
        """The questions of a split or imported set.

        Raises:
            UserError: there is none of that name, a line is no question, or asks about a repository that is not there.
        """
        if split not in self.splits:
            raise UserError(f"{self.folder} has no questions {split!r}; there are {', '.join(self.splits) or 'none'}")
        path = self.folder / QUESTIONS / f"{split}.jsonl"
        questions = tuple(read_questions(path))
        for question in questions:
            if question.repo not in self.repos:
                raise UserError(f"{path}: {question.id} asks about {question.repo!r}, which is not in {REPOS}")
        return questions

    def _repository(self, name: str) -> Repository:
        """A repository, opened once and kept.

        Raises:
            UserError: there is none of that name, or its folder has gone.
        """
        if name not in self.repos:
            raise UserError(f"{self.folder} has no repository {name!r}")
        return Repository.open(self.root(name))

    def root(self, name: str) -> Path:
        """The folder of a repository."""
        return Path(self.repos[name].path or self.folder / "repos" / name)


def open_library(folder: str = "") -> Library:
    """The library in a folder; opened once per process, and anew when its list of repositories has changed.

    Args:
        folder: "" is the default one.

    Raises:
        UserError: there is no library, or it is damaged.
    """
    path = data_folder("autoexplore", folder)
    try:
        status = (path / REPOS).stat()
        return _opened(path.resolve(), status.st_mtime_ns)
    except FileNotFoundError:
        verb = VERB + ("" if path == data_folder("autoexplore") else f" --store {folder}")
        raise UserError(
            f"there is no library of repositories in {path}: make one from well-known packages with "
            f"`{verb} --download`, or from your own repositories with `{verb} --from DIR ...`"
        ) from None
    except OSError as error:
        raise UserError(f"{path / REPOS} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=4)
def _opened(path: Path, changed: int) -> Library:
    return Library(path)


def _entry_of(row: object, place: str) -> RepoEntry:
    known = [field.name for field in fields(RepoEntry)]
    if not isinstance(row, dict) or not {"name", "split"} <= set(row):
        raise UserError(f"{place}: no repository: it needs a name and a split")
    given = {key: row.get(key, "") for key in known}
    if not all(isinstance(value, str) for value in given.values()):
        raise UserError(f"{place}: no repository: its values are not texts")
    if not given["name"] or "/" in given["name"] or given["name"].startswith("."):
        raise UserError(f"{place}: {given['name']!r} is no name of a repository")
    return RepoEntry(**given)
