"""Library of repositories and questions about them, made by `reflectrl data autoexplore`.

repos.jsonl                 a line per repository (`RepoEntry`)
repos/NAME/...              the repository, unless its entry has a `path`
questions/SPLIT.jsonl       train, validation, test, and one for every imported set (swe-qa, say)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

from reflectrl.core.config.folders import data_folder
from reflectrl.core.envs.base import SPLITS
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.questions import Question, read_questions, rows_of
from reflectrl.wings.autoexplore.repository import Repository

REPOS, QUESTIONS = "repos.jsonl", "questions"
IMPORTED = "imported"
"""Split of repositories that only imported questions ask about."""
VERB = "reflectrl data autoexplore"


@dataclass(frozen=True)
class RepoEntry:
    """Entry of a repository in the library."""

    name: str
    """Name in the library; also the name of the folder under `repos`."""
    version: str
    """Version of the release, or commit of the git clone; "" if unknown."""
    origin: str
    """Source of the repository: an address or a path."""
    licence: str
    split: str
    """train, validation, test, or `IMPORTED`."""
    path: str = ""
    """Folder of the repository if it is outside of the library; otherwise ""."""


class Library:
    """Open library, made by `open_library`.

    Args:
        folder: folder of the library.

    Raises:
        UserError: the library is damaged. The message names the file and the line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        entries = [_entry_of(row, location) for row, location in rows_of(folder / REPOS)]
        self.repos: Mapping[str, RepoEntry] = MappingProxyType({entry.name: entry for entry in entries})
        """Name → entry of each repository."""
        names = sorted(path.stem for path in (folder / QUESTIONS).glob("*.jsonl"))
        self.splits = (
            *(split for split in SPLITS if split in names),
            *(split for split in names if split not in SPLITS),
        )
        """Names of the sets of questions: the splits, then the imported sets."""
        self.questions = cache(self._questions)
        self.repository = cache(self._repository)

    def _questions(self, split: str) -> tuple[Question, ...]:
        """Read the questions of a split or imported set.

        Raises:
            UserError: there is no such set, a line is not a question, or a question is about an unknown repository.
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
        """Open a repository. `self.repository` caches the result.

        Raises:
            UserError: there is no such repository, or its folder is missing.
        """
        if name not in self.repos:
            raise UserError(f"{self.folder} has no repository {name!r}")
        return Repository.open(self.root(name))

    def root(self, name: str) -> Path:
        """Return the folder of a repository."""
        return Path(self.repos[name].path or self.folder / "repos" / name)


def open_library(folder: str = "") -> Library:
    """Open the library in a folder. It is cached per process and reopened when its list of repositories changes.

    Args:
        folder: folder of the library; "" for the default.

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


def _entry_of(row: object, location: str) -> RepoEntry:
    keys = [field.name for field in fields(RepoEntry)]
    if not isinstance(row, dict) or not {"name", "split"} <= set(row):
        raise UserError(f"{location}: not a repository: it needs a name and a split")
    arguments = {key: row.get(key, "") for key in keys}
    if not all(isinstance(value, str) for value in arguments.values()):
        raise UserError(f"{location}: not a repository: its values are not texts")
    if not arguments["name"] or "/" in arguments["name"] or arguments["name"].startswith("."):
        raise UserError(f"{location}: {arguments['name']!r} is not a valid name of a repository")
    return RepoEntry(**arguments)
