"""What a player is shown of a repository: outputs cut to a number of tokens, and perhaps not all of its files.

An output longer than `OUTPUT_TOKENS` is cut behind that many; its last line then says so. A token is a word, a number
or a single other character, which comes close to what a small model's tokenizer makes of code. Lines are cut at
`LINE_CHARACTERS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from reflectrl.wings.autoexplore.names import Folder, joined
from reflectrl.wings.autoexplore.repository import Repository

OUTPUT_TOKENS = 150
"""Longest output of a command."""
LINE_CHARACTERS = 200
"""Longest line of it."""
QUESTION_TOKENS = 120
"""So much of a question is shown; searches look for all of it."""
CUT = "(cut)"

_TOKEN = re.compile(r"[^\W_]+|[^\w\s]|_")


def cut(text: str, most: int = OUTPUT_TOKENS) -> str:
    """The beginning of a text of several lines: blank ones left out, and whole ones where possible."""
    kept: list[str] = []
    for line in _lines(text):
        begun = cut_line(line, most)
        kept.append(begun)
        if begun != line:
            break
        most -= count_tokens(begun)
    return "\n".join(kept)


def cut_line(line: str, most: int) -> str:
    """The beginning of a line, marked where it is cut."""
    if len(line) <= most:  # a token has a character at least
        return line
    tokens = list(_TOKEN.finditer(line))
    return line if len(tokens) <= most else f"{line[: tokens[most].start()]}{CUT}"


def count_tokens(text: str) -> int:
    """How many tokens a text has, as outputs are measured."""
    return len(_TOKEN.findall(text))


def _lines(text: str) -> Iterator[str]:
    """Lines that are not blank, cut, and without control characters and marks that turn the direction of reading."""
    for line in text.split("\n"):
        begun = line[:LINE_CHARACTERS].expandtabs(4)
        if not begun.isprintable():
            begun = "".join(character if character.isprintable() else " " for character in begun)
        if begun := begun[:LINE_CHARACTERS].rstrip():
            yield begun


@dataclass(frozen=True)
class View:
    """A repository as one episode sees it.

    Args:
        kept: paths that are always there: what answers the question, and the folders above.
        left_out: probability with which any other file or folder is left out (Reflect-RL's training noise).
        salt: what the draw depends on, beside the path.
    """

    repository: Repository
    kept: frozenset[str] = frozenset()
    left_out: float = 0.0
    salt: str = ""

    @classmethod
    def around(cls, repository: Repository, gold: tuple[str, ...], left_out: float, salt: str) -> View:
        """A view that keeps some files and all the folders above them."""
        kept = {"/".join(path.split("/")[:n]) for path in gold for n in range(1, path.count("/") + 2)}
        return cls(repository, frozenset(kept), left_out, salt)

    def shows(self, path: str) -> bool:
        """Whether a file or folder is there, and everything above it."""
        if not self.left_out:
            return True
        parts = path.split("/")
        return all(self._is_in("/".join(parts[:n])) for n in range(1, len(parts) + 1))

    def folder(self, path: str) -> Folder:
        """What lies in a folder that is there."""
        folder = self.repository.folder(path)
        if not self.left_out:
            return folder
        if path not in self._folders:
            folders = tuple(name for name in folder.folders if self._is_in(joined(path, name)))
            files = tuple(name for name in folder.files if self._is_in(joined(path, name)))
            self._folders[path] = Folder(path, folders, files)
        return self._folders[path]

    @cached_property
    def _folders(self) -> dict[str, Folder]:
        return {}

    def _is_in(self, path: str) -> bool:
        """Drawn from the path, so that nothing needs to be decided or kept beforehand."""
        if path in self.kept:
            return True
        data = f"{self.salt}\0{path}".encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) >= self.left_out * 2**64
