"""View of a repository for a player: outputs are cut to a number of tokens, and files may be hidden.

An output of more than `OUTPUT_TOKENS` tokens is cut, and then ends with `CUT`. A token is a word, a number or any other
single character, which is close to the tokens of a small model's tokenizer for code. Lines are cut at
`LINE_CHARACTERS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from reflectrl.wings.autoexplore.names import Folder, joined
from reflectrl.wings.autoexplore.repository import Repository

OUTPUT_TOKENS = 150
"""Longest output of a command, in tokens."""
LINE_CHARACTERS = 200
"""Longest line of an output, in characters."""
QUESTION_TOKENS = 120
"""Largest number of tokens of a question that are shown. Searches use the whole question."""
CUT = "(cut)"

_TOKEN = re.compile(r"[^\W_]+|[^\w\s]|_")


def cut(text: str, most: int = OUTPUT_TOKENS) -> str:
    """Cut a text to `most` tokens. Blank lines are dropped."""
    lines: list[str] = []
    for line in _lines(text):
        beginning = cut_line(line, most)
        lines.append(beginning)
        if beginning != line:
            break
        most -= count_tokens(beginning)
    return "\n".join(lines)


def cut_line(line: str, most: int) -> str:
    """Cut a line to `most` tokens, and mark the cut."""
    if len(line) <= most:  # a token has at least one character
        return line
    beyond = next(islice(_TOKEN.finditer(line), most, None), None)  # no further: a line may be very long
    return line if beyond is None else f"{line[: beyond.start()]}{CUT}"


def count_tokens(text: str) -> int:
    """Count the tokens of a text, as defined in this module."""
    return len(_TOKEN.findall(text))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that are not blank, cut, and without control characters and bidirectional marks."""
    for line in text.split("\n"):
        beginning = line[:LINE_CHARACTERS].expandtabs(4)
        if not beginning.isprintable():
            beginning = "".join(character if character.isprintable() else " " for character in beginning)
        if beginning := beginning[:LINE_CHARACTERS].rstrip():
            yield beginning


@dataclass(frozen=True)
class View:
    """View of a repository in an episode.

    Args:
        repository: the whole repository.
        kept: paths that are always visible: the answers and the folders above them.
        left_out: probability of hiding any other file or folder (Reflect-RL's training noise).
        salt: seed of the hidden paths. The draw depends on the salt and the path only.
    """

    repository: Repository
    kept: frozenset[str] = frozenset()
    left_out: float = 0.0
    salt: str = ""

    @classmethod
    def around(cls, repository: Repository, gold: tuple[str, ...], left_out: float, salt: str) -> View:
        """Make a view that keeps the files `gold` and all folders above them."""
        visible = {"/".join(path.split("/")[:n]) for path in gold for n in range(1, path.count("/") + 2)}
        return cls(repository, frozenset(visible), left_out, salt)

    def shows(self, path: str) -> bool:
        """Return whether a file or folder and everything above it are visible."""
        if not self.left_out:
            return True
        parts = path.split("/")
        return all(self._is_in("/".join(parts[:n])) for n in range(1, len(parts) + 1))

    def folder(self, path: str) -> Folder:
        """Return the visible contents of a visible folder."""
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
        """Decide by a hash of salt and path whether an entry is visible, so that no draws need to be stored."""
        if path in self.kept:
            return True
        data = f"{self.salt}\0{path}".encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) >= self.left_out * 2**64
