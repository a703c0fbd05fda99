"""Index a repository in one walk: list the files to explore, and count the reasons for leaving out others."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore import gitignore
from reflectrl.wings.autoexplore.gitignore import Rules, is_ignored
from reflectrl.wings.autoexplore.names import joined
from reflectrl.wings.autoexplore.sandbox import Kind, Sandbox, Stamp, entries, read_in

HEAD = 8192
"""Number of bytes from which a file is judged to be text or binary. Git reads about as many."""
_UNTEXTUAL = 0.3
"""Share of control characters and undecodable bytes above which a file is binary even without a null byte."""
_TEST_FOLDER = re.compile(r"tests?|__tests__", re.IGNORECASE)
_TEST_FILE = re.compile(r"test_.*|(tests?|conftest)\.\w+|.*[._-](test|spec)s?\.\w+", re.IGNORECASE)
_CONTROL = bytes({*range(32), 127} - set(b"\b\t\n\v\f\r\x1b"))
"""Control characters that text does not hold. The escape character is allowed: logs with colours are text."""


@dataclass(frozen=True)
class Filters:
    """Filters of files to leave out. Links, devices, pipes, sockets and `.git` are always left out."""

    ignored: bool = True
    """Leave out files that the repository's .gitignore files name. Files above the root or the user's do not count."""
    hidden: bool = True
    """Leave out names that begin with a dot."""
    tests: bool = True
    """Leave out folders of tests, and files named like tests."""
    binaries: bool = True
    """Leave out files that do not hold text."""
    non_ascii: bool = True
    """Leave out names with non-ASCII or non-printable characters."""
    min_characters: int = 10
    """Smallest number of characters of a file, without white space at both ends. Shorter files are left out."""

    def of_name(self, name: str, is_folder: bool) -> str | None:
        """Return the reason to leave out an entry because of its name; None to keep it."""
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
        """Return the reason to leave out a file because of its first bytes and its size; None to keep it."""
        if self.binaries and not is_text(head, complete=len(head) == size):
            return "binary"
        if len(head) == size and len(decoded(head).strip()) < self.min_characters:
            return f"under {self.min_characters} characters"
        return None


def is_text(data: bytes, complete: bool = True) -> bool:
    """Return whether a file that begins with `data` holds text: UTF-8, or another encoding that is mostly readable.

    Only the first `HEAD` bytes are examined. Pass `complete=False` if `data` is only the beginning of the file: then
    its last character may be cut.
    """
    head, complete = data[:HEAD], complete and len(data) <= HEAD
    if b"\0" in head:
        return False
    strange = len(head) - len(head.translate(None, _CONTROL)) + decoded(head, complete).count("\ufffd")
    return strange <= _UNTEXTUAL * len(head)


def decoded(data: bytes, complete: bool = True) -> str:
    """Decode bytes as UTF-8. Invalid bytes become U+FFFD. With `complete=False`, a cut last character is dropped."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, complete)


MOST_ENTRIES = 1_000_000
"""Largest number of files and folders. With more, the user named no repository but a home folder or a disk."""
DEEPEST = 64
"""Largest depth of nested folders that are walked."""


@dataclass(frozen=True)
class Index:
    """Result of a walk."""

    files: dict[str, Stamp]
    """Files to explore, sorted by path → stamp."""
    left_out: dict[str, int]
    """Reason → number of entries that were left out. The contents of a left-out folder are not counted."""


def index(sandbox: Sandbox, filters: Filters) -> Index:
    """Walk the whole repository and read the beginnings of its files.

    Raises:
        UserError: there are more than `MOST_ENTRIES` entries.
    """
    walk = _Walk(sandbox, filters)
    walk.pending.append(("", ()))
    while walk.pending:
        walk.visit(*walk.pending.pop())
    return Index(dict(sorted(walk.files.items())), dict(walk.left_out.most_common()))


class _Walk:
    """State of a walk: the pending folders, each with the .gitignore rules that apply in it."""

    def __init__(self, sandbox: Sandbox, filters: Filters) -> None:
        self.sandbox, self.filters = sandbox, filters
        self.pending: list[tuple[str, tuple[Rules, ...]]] = []
        self.files: dict[str, Stamp] = {}
        self.left_out: Counter[str] = Counter()
        self._seen = 0

    def visit(self, path: str, rules: tuple[Rules, ...]) -> None:
        """Visit all entries of a folder."""
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
        """Add a file to the index, or a folder to the pending ones; return the reason if the entry is left out."""
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
    """Return the rules of a folder's .gitignore; () if the file cannot be read."""
    try:
        data, _ = read_in(descriptor, ".gitignore", gitignore.MOST_BYTES)
    except OSError:
        return ()
    return (Rules(path, data.decode("utf-8", "surrogateescape")),)
