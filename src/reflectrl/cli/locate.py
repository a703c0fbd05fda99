"""`locate`: the files of a repository that may answer a question, each with its reason. Nothing leaves the machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.envs.autoexplore.search import Hit

WORDS_SHOWN = 6
"""So many of the words that a file shares with the question are printed; JSON holds all of them."""


@dataclass(frozen=True)
class Locate:
    """Find the files of a repository that answer a question, without anything leaving this machine."""

    question: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="QUESTION")] = ()
    """What you want to know: "where are retries configured?" """
    repo: Annotated[str, tyro.conf.arg(metavar="DIR")] = "."
    """Folder of the repository."""
    top: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-k"])] = 5
    """At most so many files."""
    json: bool = False
    """Print one JSON object instead of text."""
    names_only: bool = False
    """Search the names of files and folders, not what the files say."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Search, and print the files, best first."""
        self._check(settings)
        from reflectrl.envs.autoexplore.repository import Repository
        from reflectrl.envs.autoexplore.search import check_question
        from reflectrl.serve.locate import Locator

        question = " ".join(self.question)
        check_question(question)
        locator = Locator(Repository.open(self.repo), "names" if self.names_only else "both")
        what = "names only" if self.names_only else "whole files and names"
        _note(f"no trained model is there yet: this is the search baseline (BM25 over {what})")
        answer = locator.locate(question, self.top)
        if self.json:
            print(json.dumps(asdict(answer), indent=1))
            return
        if not answer.files:
            _note("no file shares a word with the question")
        for number, hit in enumerate(answer.files, 1):
            print(_safe(f"{number:>2}  {_described(hit)}"))

    def _check(self, settings: Sequence[str]) -> None:
        if settings:
            from reflectrl.plugins import suggestion

            option = settings[0].partition("=")[0]
            known = ("--repo", "--top", "--json", "--names-only")
            raise UserError(f"unknown option {option!r}{suggestion(option, known)}")
        if self.top < 1:
            raise UserError(f"--top is {self.top}; it must be at least 1")


def _described(hit: Hit) -> str:
    """Path and line as editors understand them, the words that led there, and the line itself below."""
    from reflectrl.envs.autoexplore.names import shown

    place = shown(hit.path) if hit.line is None else f"{shown(hit.path)}:{hit.line}"
    more = len(hit.words) - WORDS_SHOWN
    words = ", ".join(hit.words[:WORDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"{place}  ({words})" + (f"\n      {hit.text}" if hit.text else "")


def _note(text: str) -> None:
    print(f"reflectrl: {text}", file=sys.stderr, flush=True)


def _safe(text: str) -> str:
    """What the terminal's encoding does not know becomes an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
