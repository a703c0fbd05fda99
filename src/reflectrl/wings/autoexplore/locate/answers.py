"""Find the files for a question: shared code of `reflectrl locate` and the MCP server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters, index
from reflectrl.wings.autoexplore.locate.behind import Behind
from reflectrl.wings.autoexplore.locate.decision import UNSURE
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.search import Hit, Search, check_question

if TYPE_CHECKING:  # slow to import, and needed only with an agent
    from reflectrl.wings.autoexplore.finder import Finder
    from reflectrl.wings.autoexplore.locate.agent import Agent, Walked
    from reflectrl.wings.autoexplore.locate.live import LiveIndex
    from reflectrl.wings.autoexplore.locate.passages import ReadFile
    from reflectrl.wings.autoexplore.locate.reader import Reader
    from reflectrl.wings.autoexplore.repository import Repository

LOOK_SECONDS = 0.1
"""Time between two looks at an index that is being made."""
METHODS = {
    "search": "a learned search, and a small model that reads its first files and chooses",
    "reader": "a learned search; where it is not certain enough, a language model reads its first files and chooses",
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
    remarks: tuple[str, ...] = ()
    """Remarks on files that were not searched, or only in part: a line each."""
    is_whole: bool = True
    """False if files have not been searched yet, because the index is still being made."""

    @property
    def is_sure(self) -> bool | None:
        """Return whether the first file is likely enough to answer; None if its probability is unknown."""
        if not self.files or not self.is_whole:
            return False
        return None if self.files[0].probability is None else self.files[0].probability >= UNSURE


class Locator:
    """Find the files of a folder that may answer a question. The folder may change between questions.

    The locator is thread-safe and answers one question at a time. It looks for changed files before each answer, and
    reads only those.

    Args:
        root: folder of the repository. It is resolved once, here. Nothing outside of it is ever read.
        names_only: search the names of files only, and read no file.
        agent: agent that answers; None to answer by search.
        cached: keep the search's index in the user's cache folder.
        reader: model that reads the search's first files and chooses among them; None for the search alone.
        lasting: the locator lives longer than its first question. Then it looks for changes before that one too, and
            the kernel tells the search which folders have changed (see `LiveIndex`).
        behind: look for changes in a thread, as `begin` asks for it. Then an answer is about what is read by then.

    Raises:
        UserError: the folder does not exist, cannot be read, or has no file to explore (unless `behind`).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        names_only: bool = False,
        agent: Agent | None = None,
        cached: bool = True,
        lasting: bool = False,
        reader: Reader | None = None,
        behind: bool = False,
    ) -> None:
        self.root, self._names_only, self._agent = Sandbox(root).root, names_only, agent
        self._method = "search" if reader is None else "reader"
        self._lock = Lock()
        self._seen: Mapping[str, Stamp] = {}
        self._repository: Repository | None = None
        self._engine: Engine | None = None
        self._is_fresh = not lasting
        if not names_only and agent is None:
            self._engine = Engine(self.root, cached=cached, watched=lasting, reader=reader, refreshed=not behind)
        elif not behind:
            self._open()
        self._behind = Behind(self._open if self._engine is None else self._engine.index.refresh) if behind else None
        if behind and self._engine is not None:
            self._engine.index.fork()

    def __len__(self) -> int:
        """Return the number of files to explore, as of the last answer."""
        if self._engine is not None:
            return len(self._engine.index.corpus)
        return len(self._repository or ())

    def begin(self) -> int:
        """Begin to look for changes in the folder, `behind`. Return a ticket for `is_ready`."""
        assert self._behind is not None
        return self._behind.ask()

    def is_ready(self, ticket: int, seconds: float | None = 0.0) -> bool:
        """Wait for so long (None: for ever), and return whether the index holds every file as it was at `begin`.

        Raises:
            UserError: the folder is missing, is a link now, or has no file to search.
        """
        assert self._behind is not None
        return self._behind.is_done(ticket, seconds)

    @property
    def progress(self) -> tuple[int, int | None]:
        """Return the number of files that can be found by now, and of all files; None if that is not known yet."""
        if self._engine is None:
            return 0, None
        index = self._engine.index
        return len(index.corpus), index.total

    @property
    def progress_line(self) -> str:
        """Describe the progress in a few words."""
        done, total = self.progress
        return f"{done:,} of {total:,} files so far" if total is not None else f"{done:,} files so far"

    def locate(self, question: str, k: int, is_whole: bool = True) -> Answer:
        """Return the best `k` files of the folder in its current state; of what is read by now, if `behind`.

        Args:
            question: words to search for.
            k: largest number of files.
            is_whole: False if the index is still being made. The answer says so.

        Raises:
            UserError: the question has no word to search for, or the folder is missing or empty.
        """
        check_question(question)
        with self._lock:
            if self._engine is None:
                return self._by_walk(question, k)
            index = self._engine.index
            if not self._is_fresh and self._behind is None:
                index.refresh()
            self._is_fresh = False
            with index.lock:
                hits, remarks = self._engine.search(question, k), self._engine.remarks()
                if not is_whole:
                    remarks = [f"searched {self.progress_line}; ask again for the others", *remarks]
            return Answer(self._method, tuple(hits), remarks=tuple(remarks), is_whole=is_whole)

    def text(self, path: str) -> str:
        """Return the text of a file that can be found. Outputs of notebooks and encoded data are left out.

        Raises:
            UserError: there is no such file, or it cannot be read.
        """
        with self._lock:
            if self._engine is not None:
                file = self._read(self._engine.index, path)
                text = None if file is None else file.text
            else:
                from reflectrl.wings.autoexplore.legible import legible

                text = legible(self._open().repository, path).text or None
        if text is None:
            raise UserError(f"there is no file {shown(path)} to read: name one as `locate` does")
        return text

    def _read(self, index: LiveIndex, path: str) -> ReadFile | None:
        """Read a file in its current state. An index that is still being made is waited for until it has the file."""
        if self._behind is None:
            index.refresh()
            return index.read(path)
        ticket = self._behind.ask()
        while not self._behind.is_done(ticket, LOOK_SECONDS):
            with index.lock:
                if index.is_seen(path) and (file := index.read(path)) is not None:
                    return file
        with index.lock:
            return index.read(path)

    def _by_walk(self, question: str, k: int) -> Answer:
        """Answer by names alone, or by the agent, whose environment has a search of its own."""
        finder = self._open()
        if self._names_only:
            return Answer("names", tuple(Search(finder.repository, "names").search(question, k)))
        assert self._agent is not None
        walked = self._agent.walk(finder, question)
        hits = finder.search.explain(question, walked.ranking[:k])
        cut = tuple(f"{shown(path)}: searched only in part" for path in sorted(finder.search.cut))
        return Answer("agent", tuple(hits), walked, cut)

    def _open(self) -> Finder:
        """Open the repository, again if it has changed. A change meanwhile is noticed before the next answer."""
        from reflectrl.wings.autoexplore.finder import Finder
        from reflectrl.wings.autoexplore.repository import Repository

        sandbox = Sandbox(self.root, suggests=False)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        seen = index(sandbox, Filters()).files
        if self._repository is None or seen != self._seen:
            self._repository = Repository.open(self.root)
            self._finder = Finder(self._repository)
            self._seen = seen
        return self._finder
