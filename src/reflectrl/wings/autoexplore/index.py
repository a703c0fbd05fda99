"""Walking a repository, once: which files there are to explore, and why others were left out."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass

from reflectrl.types import UserError
from reflectrl.wings.autoexplore import gitignore
from reflectrl.wings.autoexplore.gitignore import Rules, is_ignored
from reflectrl.wings.autoexplore.names import joined
from reflectrl.wings.autoexplore.sandbox import Kind, Sandbox, Stamp, entries, read_in

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


MOST_ENTRIES = 1_000_000
"""Files and folders beyond which something that is no repository (a home folder, a disk) was named."""
DEEPEST = 64
"""Folders inside folders beyond which a walk does not go."""


@dataclass(frozen=True)
class Index:
    """What a walk found."""

    files: dict[str, Stamp]
    """Every file to explore, sorted by path."""
    left_out: dict[str, int]
    """Reason → how many entries were left out for it. What is in a folder that was left out is not counted."""


def index(sandbox: Sandbox, filters: Filters) -> Index:
    """Walk the whole repository, reading the beginnings of its files.

    Raises:
        UserError: there are more entries than in any repository.
    """
    walk = _Walk(sandbox, filters)
    walk.pending.append(("", ()))
    while walk.pending:
        walk.visit(*walk.pending.pop())
    return Index(dict(sorted(walk.files.items())), dict(walk.left_out.most_common()))


class _Walk:
    """A walk under way: the folders yet to be visited, each with the rules of git that hold in it."""

    def __init__(self, sandbox: Sandbox, filters: Filters) -> None:
        self.sandbox, self.filters = sandbox, filters
        self.pending: list[tuple[str, tuple[Rules, ...]]] = []
        self.files: dict[str, Stamp] = {}
        self.left_out: Counter[str] = Counter()
        self._seen = 0

    def visit(self, path: str, rules: tuple[Rules, ...]) -> None:
        """Look at everything in one folder."""
        try:
            with self.sandbox.folder(path) as descriptor:
                found = entries(descriptor)
                self._seen += len(found)
                if self._seen > MOST_ENTRIES:
                    raise UserError(
                        f"{str(self.sandbox.root)!r} holds more than {MOST_ENTRIES:,} files; name one repository"
                    )
                if self.filters.ignored and (".gitignore", "file") in found:
                    rules = (*rules, *_rules_in(descriptor, path))
                for name, kind in found:
                    reason = self._take(descriptor, path, name, kind, rules)
                    if reason is not None:
                        self.left_out[reason] += 1
        except OSError:
            self.left_out["unreadable"] += 1

    def _take(self, descriptor: int, folder: str, name: str, kind: Kind, rules: tuple[Rules, ...]) -> str | None:
        """Note a file, or a folder to visit, unless there is a reason not to, which is returned."""
        if kind in ("link", "special"):
            return "a link" if kind == "link" else "a device, pipe or socket"
        path = joined(folder, name)
        if (reason := self.filters.of_name(name, kind == "folder")) is not None:
            return reason
        if rules and is_ignored(path + "/" * (kind == "folder"), rules):
            return "ignored by git"
        if kind == "folder":
            if path.count("/") >= DEEPEST:
                return "too deep"
            self.pending.append((path, rules))
            return None
        try:
            head, stamp = read_in(descriptor, name, HEAD)
        except OSError:
            return "unreadable"
        if (reason := self.filters.of_content(head, stamp.size)) is None:
            self.files[path] = stamp
        return reason


def _rules_in(descriptor: int, path: str) -> tuple[Rules, ...]:
    """The rules of a folder's .gitignore; none if it cannot be read."""
    try:
        data, _ = read_in(descriptor, ".gitignore", gitignore.MOST_BYTES)
    except OSError:
        return ()
    return (Rules(path, data.decode("utf-8", "surrogateescape")),)
