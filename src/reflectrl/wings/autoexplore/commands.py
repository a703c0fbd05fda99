"""Commands of a walk through a repository and their results: read-only, without a shell or subprocess."""

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
"""Longest output of `head`, in tokens."""


@dataclass(frozen=True, slots=True)
class Command:
    """Parsed action: a verb and its argument, which is a path, or words for `search`."""

    verb: Verb
    path: str = ""


@dataclass(frozen=True)
class Result:
    """Output of a command. Errors and warnings (`trouble`) cost extra reward, as in Reflect-RL."""

    text: str
    trouble: Literal["error", "warning"] | None = None


class Walk(Protocol):
    """State of a walk, implemented by each action set (`paper.py`, `extended.py`)."""

    view: View
    folder: str

    def history(self) -> str:
        """Return the part of the prompt that only grows."""
        ...

    def state(self) -> str:
        """Return the part of the prompt that may change entirely at each step."""
        ...

    def commands(self) -> Mapping[str, Command]:
        """Return the legal actions: the same object until the next `do`. Callers must not change it."""
        ...

    def do(self, action: str) -> Result:
        """Execute a legal action."""
        ...

    def way_to(self, target: str) -> list[str]:
        """Return a short sequence of actions from here that ends with identifying `target`."""
        ...

    def found_with(self, path: str) -> tuple[str, ...]:
        """Return the latest page of search hits that contains `path`; () if none does."""
        ...

    def get_state(self) -> Any:
        """Return everything that `do` changes."""
        ...

    def set_state(self, state: Any) -> None:
        """Restore a value of `get_state`."""
        ...


def cat(repository: Repository, path: str) -> Result:
    """Return the beginning of a file."""
    read = repository.read(path)
    return _error(read) if isinstance(read, Unreadable) else Result(cut(read.text))


def head(repository: Repository, path: str) -> Result:
    """Return the first `HEAD_TOKENS` tokens of a file."""
    read = repository.read(path)
    return _error(read) if isinstance(read, Unreadable) else Result(cut(read.text, HEAD_TOKENS))


def outlined(repository: Repository, profiles: Profiles, path: str) -> Result:
    """Return the definitions of a file, one per line: kind, name with parameters, and first sentence of the docs."""
    read = repository.read(path, CONTENT_BYTES)
    if isinstance(read, Unreadable):
        return _error(read)
    lines = [f"{definition.kind} {definition.name}{definition.signature}"
             + (f": {definition.doc}" if definition.doc else "")
             for definition in profiles.of(path).definitions]  # fmt: skip
    return Result(cut("\n".join(lines))) if lines else Result("Warning: nothing is defined there", "warning")


def _error(unreadable: Unreadable) -> Result:
    return Result(f"Error: {unreadable.reason}", "error")
