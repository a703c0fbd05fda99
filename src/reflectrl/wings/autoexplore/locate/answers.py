"""Find the files for a question: shared code of `reflectrl locate` and the MCP server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import A_TEST, OTHER_CHECKOUT, TOO_MANY_RULES, Filters, index
from reflectrl.wings.autoexplore.locate.behind import Behind
from reflectrl.wings.autoexplore.locate.decision import UNSURE
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.originals import Named, Originals
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.sandbox import Sandbox, Stamp
from reflectrl.wings.autoexplore.search import Hit, Search, check_question

if TYPE_CHECKING:  # slow to import, and needed only with an agent
    from reflectrl.wings.autoexplore.finder import Finder
    from reflectrl.wings.autoexplore.locate.agent import Agent, Walked
    from reflectrl.wings.autoexplore.locate.reader import Reader
    from reflectrl.wings.autoexplore.repository import Repository

METHODS = {
    "search": "a learned search, and a small model that reads its first files and chooses",
    "reader": "a learned search; where it is not certain enough, a language model reads its first files and chooses",
    "names": "search over names only (BM25)",
    "agent": "a trained agent that walks through the repository",
}
"""`Answer.method` → description of the method."""
_LEFT_OUT = {
    A_TEST: "{} left out as tests; a question that names such a file finds it",
    OTHER_CHECKOUT: "{} left out, because they are further checkouts of the repository (git worktrees)",
    TOO_MANY_RULES: "{} left out, because git's rules there are too many to be applied",
}
"""Reason for leaving out files and folders → remark about their number."""


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
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of files and folders that were left out."""
    is_whole: bool = True
    """False if files have not been searched yet, because the index is still being made."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return all that the user should know besides the files, a line each."""
        if not self.is_whole:
            return self.remarks  # they say so, and other words would not help
        if not self.files:
            return (*self.remarks, "no file shares a word with the question")
        if self.is_sure is False:
            return (*self.remarks, "not sure: ask in other words, or name an identifier or a file that you know")
        return self.remarks

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
        self.originals = Originals(root)
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

    def check(self, question: str) -> None:
        """Refuse a question that no file can answer, before any is looked at.

        Raises:
            UserError: the question has no word to search for and names no file.
        """
        self._named_without_words(question)

    def _named_without_words(self, question: str) -> Named | None:
        """Return the files that a question names if it has no word to search for; None if it has one.

        Raises:
            UserError: it has no such word, and names no file either.
        """
        try:
            check_question(question)
        except UserError:
            named = self.originals.named(question, ())
            if not named.others:
                raise
            return named
        return None

    def locate(self, question: str, k: int, is_whole: bool = True) -> Answer:
        """Return the best `k` files of the folder in its current state, and those that the question names.

        If the locator works `behind`, they are the best of what is read by now.

        Args:
            question: words to search for, or names of files.
            k: largest number of files.
            is_whole: False if the index is still being made. The answer says so.

        Raises:
            UserError: the question has no word to search for and names no file, or the folder is missing or empty.
        """
        named = self._named_without_words(question)
        if named is not None:
            return with_named(Answer(self._method, (), is_whole=is_whole), named, k)
        with self._lock:
            answer, paths = self._searched(question, k, is_whole)
            return with_named(answer, self.originals.named(question, paths), k)

    def _searched(self, question: str, k: int, is_whole: bool) -> tuple[Answer, Iterable[str]]:
        """Return the files that a search or an agent finds, and the paths of all files that were searched."""
        if self._engine is None:
            return self._by_walk(question, k), self._repository or ()
        live = self._engine.index
        if not self._is_fresh and self._behind is None:
            live.refresh()
        self._is_fresh = False
        with live.lock:
            hits, remarks = self._engine.search(question, k), self._engine.remarks()
            left_out, paths = live.left_out, tuple(live.corpus.paths)
        if not is_whole:
            remarks = [f"searched {self.progress_line}; ask again for the others", *remarks]
        every_remark = (*remarks, *live.rule_remarks, *_left_out_remarks(left_out))
        return Answer(self._method, tuple(hits), remarks=every_remark, left_out=left_out, is_whole=is_whole), paths

    def _by_walk(self, question: str, k: int) -> Answer:
        """Answer by names alone, or by the agent, whose environment has a search of its own."""
        finder = self._open()
        if self._names_only:
            hits = Search(finder.repository, "names").search(question, k)
            left_out = finder.repository.left_out
            return Answer("names", tuple(hits), remarks=_left_out_remarks(left_out), left_out=left_out)
        assert self._agent is not None
        walked = self._agent.walk(finder, question)
        hits = finder.search.explain(question, walked.ranking[:k])
        cut = tuple(f"{shown(path)}: searched only in part" for path in sorted(finder.search.cut))
        left_out = finder.repository.left_out
        return Answer("agent", tuple(hits), walked, (*cut, *_left_out_remarks(left_out)), left_out)

    def _open(self) -> Finder:
        """Open the repository, again if it has changed. A change meanwhile is noticed before the next answer."""
        from reflectrl.wings.autoexplore.finder import Finder
        from reflectrl.wings.autoexplore.repository import Repository

        sandbox = Sandbox(self.root, suggests=False)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        filters = Filters(outside=True)
        seen = index(sandbox, filters).files
        if self._repository is None or seen != self._seen:
            self._repository = Repository.open(self.root, filters)
            self._finder = Finder(self._repository)
            self._seen = seen
        return self._finder


def with_named(answer: Answer, named: Named, k: int) -> Answer:
    """Return an answer in which the files that the question names are among the first `k`.

    Files that are not searched come first, because nothing else could rank them. So do all of them if the question is
    nothing but their name. Others keep their rank, and take the last places if they have none.
    """
    hits = {hit.path: hit for hit in answer.files}
    best, least = (answer.files[0].score, answer.files[-1].score) if answer.files else (0.0, 0.0)
    ranked = sorted(named.searched, key=lambda path: path not in hits)
    # If the question says more, files that only have the same name must not take all places.
    others_named = named.others if named.is_all else named.others[: max(1, k // 2)]
    first = [*(ranked if named.is_all else []), *others_named][:k]
    others = [path for path in hits if path not in first][: k - len(first)]
    missing = [path for path in ranked if path not in first and path not in others]
    if not named.is_path and not named.is_all:  # a name has found its file if one of several is there
        names = {path.rpartition("/")[2].lower() for path in others}
        missing = [path for path in missing if path.rpartition("/")[2].lower() not in names][: k // 2]
    missing = missing[: k - len(first)]
    surplus = max(len(first) + len(others) + len(missing) - k, 0)
    unnamed = [path for path in others if path not in named.searched]
    dropped = set(unnamed[max(len(unnamed) - surplus, 0) :]) if surplus else set()
    others = [path for path in others if path not in dropped][: k - len(first)]
    files = list[Hit]()
    for path in [*first, *others, *missing][:k]:
        hit = hits.get(path)
        if hit is None:
            what = "the question names it"
            if path in named.others:
                what += "; it is not searched" if answer.is_whole else "; it has not been searched so far"
            hit = Hit(path, least if path in missing else best, (), why=what)
        elif path in first and path != answer.files[0].path:
            hit = replace(hit, score=best, probability=None)  # the probability was that of another rank
        files.append(hit)
    return replace(answer, files=tuple(files))


def _left_out_remarks(left_out: Mapping[str, int]) -> tuple[str, ...]:
    """Describe, one line each, what was left out without the user's doing."""
    counts = {reason: left_out.get(reason, 0) for reason in _LEFT_OUT}
    return tuple(
        _LEFT_OUT[reason].format(f"{count:,} {'entries' if count > 1 else 'entry'}")
        for reason, count in counts.items()
        if count
    )
