"""From a question to files: what `reflectrl locate` and the MCP server have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from reflectrl.types import UserError
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.index import Filters, index
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.search import Hit, Search, check_question
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

if TYPE_CHECKING:  # slow to import, and needed where there is an agent only
    from reflectrl.wings.autoexplore.locate.agent import Agent, Walked

METHODS = {
    "search": "search (BM25, then what the parts of a file have in common with the question)",
    "names": "search over names only (BM25)",
    "agent": "a trained agent that walks through the repository",
}
"""Ways of finding files, as `Answer.method` names them, and in words."""


@dataclass(frozen=True)
class Answer:
    """The files that may answer a question."""

    method: str
    """How they were found: one of `METHODS`."""
    files: tuple[Hit, ...]
    """Best first; fewer than were asked for where fewer share a word with the question. Scores are larger for better
    ones and comparable within an answer; an agent's are the probabilities that it gave to files in its last choice, and
    0 for those that only its search has found."""
    walked: Walked | None = None
    """How an agent came to it."""
    cut: tuple[str, ...] = ()
    """Files so large that only their beginnings were searched, sorted."""


class Locator:
    """Finds the files of a repository that may answer a question. Share one: what it indexes, it indexes once.

    Args:
        repository: as it was when it was opened.
        names_only: search names, reading no file.
        agent: who answers; without one, the search does.
    """

    def __init__(self, repository: Repository, names_only: bool = False, agent: Agent | None = None) -> None:
        self.repository, self._agent = repository, agent
        self._names = Search(repository, "names") if names_only else None
        self._finder = Finder(repository)

    def locate(self, question: str, k: int) -> Answer:
        """The best `k` files.

        Raises:
            UserError: there is no word to search for in the question.
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
    """A locator for a folder that changes.

    The folder is walked before each answer, and indexed anew if any file came, went or changed since the answer before.
    Threads may share it; they are answered one after another.

    Args:
        root: the repository's folder. It is resolved once, here; nothing outside of it is ever read.
        agent: who answers; without one, the search does.

    Raises:
        UserError: there is no such folder, it may not be read, or no file in it is left to explore.
    """

    def __init__(self, root: str | os.PathLike[str], agent: Agent | None = None) -> None:
        self.root, self._agent = Sandbox(root).root, agent
        self._lock = Lock()
        self._seen: Mapping[str, Stamp] = {}
        self._locator = self._current()

    def __len__(self) -> int:
        """Files to explore, as of the last answer."""
        return len(self._locator.repository)

    def locate(self, question: str, k: int) -> Answer:
        """The best `k` files of the folder as it is now.

        Raises:
            UserError: there is no word to search for in the question, or the folder is gone, or empty.
        """
        check_question(question)
        with self._lock:
            self._locator = self._current()
            return self._locator.locate(question, k)

    def _current(self) -> Locator:
        """The locator of the folder as it is; what is not yet known when the walk begins is found by the next one."""
        sandbox = Sandbox(self.root)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        seen = index(sandbox, Filters()).files
        if self._seen and seen == self._seen:
            return self._locator
        repository = Repository.open(self.root)
        self._seen = seen
        return Locator(repository, agent=self._agent)
