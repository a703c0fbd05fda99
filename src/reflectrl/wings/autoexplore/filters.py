"""What is left out of a repository before anyone explores it (Reflect-RL, AutoExplore: filtering repositories)."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

HEAD = 8192
"""Bytes of a file from which it is told whether it holds text; git looks at about as many."""
_UNTEXTUAL = 0.3
"""Share of control characters and undecodable bytes beyond which a file without a null byte is binary all the same."""
_TEST_FOLDER = re.compile(r"tests?|__tests__", re.IGNORECASE)
_TEST_FILE = re.compile(r"test_.*|(tests?|conftest)\.\w+|.*[._-](test|spec)s?\.\w+", re.IGNORECASE)
_CONTROL = bytes({*range(32), 127} - set(b"\b\t\n\v\f\r\x1b"))
"""What text does not hold. The escape character is not among them: logs with colours are text."""


@dataclass(frozen=True)
class Filters:
    """What is left out; False (or 0) keeps it. Links, devices, pipes, sockets and `.git` are always left out."""

    ignored: bool = True
    """What the repository's .gitignore files, nested ones included, name. (Not those above the root or the user's.)"""
    hidden: bool = True
    """Names that begin with a dot."""
    tests: bool = True
    """Folders of tests and files that are named like tests."""
    binaries: bool = True
    """Files that do not hold text."""
    non_ascii: bool = True
    """Names with characters beyond ASCII, or that do not print."""
    min_characters: int = 10
    """Files with fewer characters, white space at both ends not counted."""

    def of_name(self, name: str, is_folder: bool) -> str | None:
        """Why an entry of that name is left out; None if it is not."""
        if name == ".git":
            return "git's own"
        if self.hidden and name.startswith("."):
            return "hidden"
        if self.non_ascii and not (name.isascii() and name.isprintable()):
            return "not named in ASCII"
        if self.tests and (_TEST_FOLDER if is_folder else _TEST_FILE).fullmatch(name):
            return "a test"
        return None

    def of_content(self, head: bytes, size: int) -> str | None:
        """Why a file of so many bytes that begins like this is left out; None if it is not."""
        if self.binaries and not is_text(head, complete=len(head) == size):
            return "binary"
        if len(head) == size and len(decoded(head).strip()) < self.min_characters:
            return f"under {self.min_characters} characters"
        return None


def is_text(data: bytes, complete: bool = True) -> bool:
    """Whether a file that begins like this holds text: UTF-8, or something else that is nearly all readable.

    Only the first `HEAD` bytes are looked at. `complete` says that `data` is all of the file; otherwise its last
    character may be cut.
    """
    head, complete = data[:HEAD], complete and len(data) <= HEAD
    if b"\0" in head:
        return False
    strange = len(head) - len(head.translate(None, _CONTROL)) + decoded(head, complete).count("\ufffd")
    return strange <= _UNTEXTUAL * len(head)


def decoded(data: bytes, complete: bool = True) -> str:
    """Bytes as text. What is not UTF-8 becomes U+FFFD, and a character cut off by an incomplete end is dropped."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, complete)
