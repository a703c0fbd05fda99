"""Find the files for a question: shared code of `reflectrl locate` and the MCP server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.index import Filters, index
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.search import Hit, Search, check_question
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

if TYPE_CHECKING:  # slow to import, and needed only with an agent
    from reflectrl.wings.autoexplore.locate.agent import Agent, Walked

METHODS = {
    "search": "search (BM25, then what the parts of a file have in common with the question)",
    "names": "search over names only (BM25)",
    "agent": "a trained agent that walks through the repository",
}
"""`Answer.method` → description of the method."""


@dataclass(frozen=True)
class Answer:
    """Files that may answer a question."""

    method: str
    """Method by which the files were found: a key of `METHODS`."""
    files: tuple[Hit, ...]
    """Files, best first; fewer than requested if fewer share a word with the question. Larger scores are better, and
    comparable within one answer only. An agent's scores are the probabilities of its last step, and 0 for files that
    only its search found."""
    walked: Walked | None = None
    """Walk of the agent; None for a search."""
    cut: tuple[str, ...] = ()
    """Large files that were searched only in part, sorted."""


class Locator:
    """Find the files of a repository that may answer a question. Share the locator: it builds its index once.

    Args:
        repository: repository, in the state in which it was opened.
        names_only: search the names of files only, and read no file.
        agent: agent that answers; None to answer by search.
    """

    def __init__(self, repository: Repository, names_only: bool = False, agent: Agent | None = None) -> None:
        self.repository, self._agent = repository, agent
        self._names = Search(repository, "names") if names_only else None
        self._finder = Finder(repository)

    def locate(self, question: str, k: int) -> Answer:
        """Return the best `k` files.

        Raises:
            UserError: the question has no word to search for.
        """
        if self._names is not None:
            return Answer("names", tuple(self._names.search(question, k)))
        search = self._finder.search
        if self._agent is not None:
            walked = self._agent.walk(self._finder, question)
            hits = search.explain(question, walked.ranking[:k])
            return Answer("agent", tuple(hits), walked, tuple(sorted(search.cut)))
        asked = printable(question)
        found = self._finder.ranked(asked, "", View(self.repository))[:k]
        scored = [(path, self._finder.promise(path, asked)) for path in found]
        return Answer("search", tuple(search.explain(question, scored)), cut=tuple(sorted(search.cut)))


class LiveLocator:
    """Locator for a folder that may change.

    The folder is walked before each answer, and indexed again if any file was added, removed or changed since the last
    answer. The locator is thread-safe and answers one question at a time.

    Args:
        root: folder of the repository. It is resolved once, here. Nothing outside of it is ever read.
        agent: agent that answers; None to answer by search.

    Raises:
        UserError: the folder does not exist, cannot be read, or has no file to explore.
    """

    def __init__(self, root: str | os.PathLike[str], agent: Agent | None = None) -> None:
        self.root, self._agent = Sandbox(root).root, agent
        self._lock = Lock()
        self._seen: Mapping[str, Stamp] = {}
        self._locator = self._current()

    def __len__(self) -> int:
        """Return the number of files to explore, as of the last answer."""
        return len(self._locator.repository)

    def locate(self, question: str, k: int) -> Answer:
        """Return the best `k` files of the folder in its current state.

        Raises:
            UserError: the question has no word to search for, or the folder is missing or empty.
        """
        check_question(question)
        with self._lock:
            self._locator = self._current()
            return self._locator.locate(question, k)

    def _current(self) -> Locator:
        """Return a locator for the current folder. A change during the walk is noticed before the next answer."""
        sandbox = Sandbox(self.root)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        seen = index(sandbox, Filters()).files
        if self._seen and seen == self._seen:
            return self._locator
        repository = Repository.open(self.root)
        self._seen = seen
        return Locator(repository, agent=self._agent)
