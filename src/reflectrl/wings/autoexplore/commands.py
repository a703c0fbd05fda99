"""Commands of a walk through a repository, and what they answer: read-only, without a shell and without a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from reflectrl.wings.autoexplore.finder import Profiles
from reflectrl.wings.autoexplore.legible import CONTENT_BYTES
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Unreadable
from reflectrl.wings.autoexplore.view import View, cut

Verb = Literal["cd", "ls", "next", "back", "cat", "head", "outline", "id", "search", "more"]

HEAD_TOKENS = 60
"""Longest output of `head`."""


@dataclass(frozen=True, slots=True)
class Command:
    """What an action does: a verb, and the path (or, for `search`, the words) that it is about."""

    verb: Verb
    path: str = ""


@dataclass(frozen=True)
class Result:
    """What a command answered; `trouble` costs extra, as in Reflect-RL."""

    text: str
    trouble: Literal["error", "warning"] | None = None


class Walk(Protocol):
    """A walk under way, by one of the action sets (`paper.py`, `extended.py`)."""

    view: View
    folder: str

    def history(self) -> str:
        """Text that only grows."""
        ...

    def state(self) -> str:
        """Text that may change entirely."""
        ...

    def commands(self) -> Mapping[str, Command]:
        """The actions that are legal now; the same object until the next `do`, not to be changed."""
        ...

    def do(self, action: str) -> Result:
        """Carry out a legal action."""
        ...

    def way_to(self, target: str) -> list[str]:
        """The actions of a short way from here to identifying a file, the first to be taken now."""
        ...

    def found_with(self, path: str) -> tuple[str, ...]:
        """The files of the last page of search hits that showed a file; () where none did."""
        ...

    def get_state(self) -> Any:
        """Everything that `do` changes."""
        ...

    def set_state(self, state: Any) -> None:
        """Go back to a value of `get_state`."""
        ...


def cat(repository: Repository, path: str) -> Result:
    """The beginning of a file."""
    read = repository.read(path)
    return _error(read) if isinstance(read, Unreadable) else Result(cut(read.text))


def head(repository: Repository, path: str) -> Result:
    """The first lines of a file."""
    read = repository.read(path)
    return _error(read) if isinstance(read, Unreadable) else Result(cut(read.text, HEAD_TOKENS))


def outlined(repository: Repository, profiles: Profiles, path: str) -> Result:
    """What a file defines, a line for each: its kind, its name with parameters, and what is said about it."""
    read = repository.read(path, CONTENT_BYTES)
    if isinstance(read, Unreadable):
        return _error(read)
    lines = [f"{one.kind} {one.name}{one.signature}" + (f": {one.doc}" if one.doc else "")
             for one in profiles.of(path).definitions]  # fmt: skip
    return Result(cut("\n".join(lines))) if lines else Result("Warning: nothing is defined there", "warning")


def _error(unreadable: Unreadable) -> Result:
    return Result(f"Error: {unreadable.reason}", "error")
