"""Files of a folder as they are on disk: what `read` and `outline` hand out, and files that a question names.

More files can be read than are searched: tests and very short files, too. What git leaves out, hidden files and binary
files cannot. A path is looked up anew each time, by the same rules as in a walk, so nothing depends on the index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.decoding import Decoded, decode
from reflectrl.wings.autoexplore.index import HEAD, Walk, is_text
from reflectrl.wings.autoexplore.locate import kinds
from reflectrl.wings.autoexplore.locate.contents import contents
from reflectrl.wings.autoexplore.locate.live import FILTERS
from reflectrl.wings.autoexplore.names import shown, unescaped
from reflectrl.wings.autoexplore.outline import Definition
from reflectrl.wings.autoexplore.outline import outline as definitions
from reflectrl.wings.autoexplore.sandbox import Sandbox, why

READABLE = replace(FILTERS, tests=False, min_characters=0)
"""Files that can be read."""
MOST_BYTES = 256 * 1024 * 1024
"""Largest file that can be read."""
MOST_LINES = 400
"""Largest number of lines of a passage."""
MOST_CHARACTERS = 40_000
"""Largest number of characters of a passage. Assistants refuse answers of about 100,000."""
WORTH_KEEPING = 1024 * 1024
"""Size from which on the text of the last file is kept, since it is read piece by piece."""
OUTLINED_CHARACTERS = 1024 * 1024
"""Largest part of a file that is outlined, from its beginning."""
MOST_DEFINITIONS = 100_000
MOST_NAMED = 50
"""Largest number of files that a question names and that are not searched."""
_SUFFIX = re.compile(r"\.(\w{1,12})\b")
_LONE_NAME = re.compile(r"[/A-Z]", re.IGNORECASE)
"""Question that may be a file's name without a suffix."""


class Passage(NamedTuple):
    """Part of a file.

    Attributes:
        path: path of the file, relative to the root.
        start, column: line and character from which on it is, both from 1.
        end: its last line.
        lines: number of lines of the file: one more than there are line feeds.
        text: the text of the file, unchanged.
        next: line and character with which to read on; None at the end of the file.
        is_cut: it ends before the line that was asked for.
        encoding: encoding of the file.
    """

    path: str
    start: int
    column: int
    end: int
    lines: int
    text: str
    next: tuple[int, int] | None
    is_cut: bool
    encoding: str


class Outline(NamedTuple):
    """Definitions of a file.

    Attributes:
        path: path of the file, relative to the root.
        definitions: definitions in the order of their lines.
        is_whole: False if only the beginning of the file was looked at.
    """

    path: str
    definitions: tuple[Definition, ...]
    is_whole: bool


class Named(NamedTuple):
    """Files that a question names.

    Attributes:
        searched: files that are searched, too.
        others: files that are left out of the search, such as tests.
        is_path: the question holds whole paths.
        is_all: the question holds nothing else.
    """

    searched: list[str]
    others: list[str]
    is_path: bool
    is_all: bool


class Originals:
    """Files of a folder that can be read. It is thread-safe.

    Args:
        root: folder of the repository. It is resolved once, here. Absolute paths may begin with it, resolved or not.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Sandbox(root).root
        logical = Path(os.environ.get("PWD", "/")) / root
        named = (Path(root).absolute(), logical)  # the path of the current folder may hold links, too
        self._aliases = (self.root, *(Path(os.path.normpath(path)) for path in named))
        self._lock = Lock()
        self._last: tuple[object, list[str], str] | None = None

    def passage(self, path: str, start: int = 1, end: int | None = None, column: int = 1) -> Passage:
        """Return lines of a file, as many as fit into `MOST_LINES` and `MOST_CHARACTERS`; of a longer line, a part.

        Args:
            path: path as `locate` returns it, an absolute path in the root, or one with "./" in front.
            start: first line, from 1.
            end: last line; None for as many lines as fit.
            column: first character of the first line, from 1.

        Raises:
            UserError: there is no such file, it cannot be read, or there are no such lines.
        """
        path, (lines, encoding) = self._lines(path)
        last = len(lines) if end is None else end
        if not 1 <= start <= len(lines) or last < start:
            raise UserError(f"{shown(path)} has the lines 1 to {len(lines)}; start is {start}, end is {end}")
        if not 1 <= column <= len(lines[start - 1]) + 1:
            size = len(lines[start - 1])
            raise UserError(f"line {start} of {shown(path)} has {size:,} characters; column is {column}")
        last = min(last, len(lines))
        pieces, left, number = [lines[start - 1][column - 1 :]], MOST_CHARACTERS, start
        left -= len(pieces[0])
        while left >= 0 and number < min(last, start + MOST_LINES - 1):
            left -= len(lines[number]) + 1
            if left >= 0:
                pieces.append(lines[number])
                number += 1
        if len(pieces[0]) > MOST_CHARACTERS:  # the line is too long for one passage
            text, following = pieces[0][:MOST_CHARACTERS], (start, column + MOST_CHARACTERS)
            return Passage(path, start, column, start, len(lines), text, following, True, encoding)
        reading_on = (number + 1, 1) if number < len(lines) else None
        return Passage(path, start, column, number, len(lines), "\n".join(pieces), reading_on, number < last, encoding)

    def outline(self, path: str) -> Outline:
        """Return what a file defines.

        Raises:
            UserError: there is no such file, or it cannot be read.
        """
        path, data, size = self._data(path, 4 * OUTLINED_CHARACTERS)
        view = contents(path, data, len(data) == size, OUTLINED_CHARACTERS)
        return Outline(path, definitions(path, view.text, MOST_DEFINITIONS), not view.cut)

    def named(self, question: str, searched: Iterable[str]) -> Named:
        """Return the files that a question names.

        Args:
            question: question in which paths or names of files may occur.
            searched: paths of all files that are searched.
        """
        mentions, searched = Mentions(question, self.root), set(searched)
        suffixes = {suffix.lower() for suffix in _SUFFIX.findall(question)}
        is_lone = len(question.split()) == 1
        if not suffixes and not is_lone:
            return Named([], [], False, False)
        of_search = mentions.of(sorted(searched))
        # With a whole path, nothing else is meant. `os.path` is no file, so that no folder need be listed.
        is_file_name = not suffixes.isdisjoint(kinds.SUFFIXES.union(map(_suffix, searched)))
        may_be_left_out = is_file_name or (is_lone and _LONE_NAME.search(question) is not None)
        if mentions.names_path or not may_be_left_out:
            return Named(of_search, [], mentions.names_path, mentions.is_a_name)
        walk = Walk(READABLE, names_only=True)
        every_file = walk.everything(Sandbox(self.root, suggests=False), lambda path: None).files
        of_others = mentions.of(path for path in every_file if path not in searched)
        readable = list(islice(filter(self._is_readable, of_others), MOST_NAMED))
        return Named([] if mentions.names_path else of_search, readable, mentions.names_path, mentions.is_a_name)

    def _is_readable(self, path: str) -> bool:
        try:
            return is_text(self._data(path, HEAD)[1], complete=False)
        except UserError:
            return False

    def _lines(self, path: str) -> tuple[str, tuple[list[str], str]]:
        """Return the path of a file, its lines, and its encoding."""
        with self._lock:
            path = self._resolved(path)
            version = self._version(path)
            if self._last is not None and self._last[0] == version:
                return path, self._last[1:]
            path, data, size = self._data(path, MOST_BYTES)
            if size > MOST_BYTES:
                raise UserError(f"{shown(path)} has {size:,} bytes; at most {MOST_BYTES:,} can be read")
            decoded: Decoded = decode(data)
            lines = decoded.text.split("\n")
            self._last = (version, lines, decoded.encoding) if size >= WORTH_KEEPING else None
            return path, (lines, decoded.encoding)

    def _version(self, path: str) -> object:
        """Return a value that changes whenever a file changes."""
        folder, _, name = path.rpartition("/")
        try:
            with Sandbox(self.root, suggests=False).folder(folder) as descriptor:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError as error:
            raise UserError(f"{shown(path)} cannot be read: {why(error)}") from None
        return path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _data(self, path: str, limit: int) -> tuple[str, bytes, int]:
        """Return the path of a file, its bytes or their beginning, and its size.

        Raises:
            UserError: there is no such file, it cannot be read, or it is no text.
        """
        path = self._resolved(path)
        try:
            data, stamp = Sandbox(self.root, suggests=False).read(path, limit)
        except OSError as error:
            raise UserError(f"{shown(path)} cannot be read: {why(error)}") from None
        if not is_text(data, len(data) == stamp.size):
            raise UserError(f"{shown(path)} is a binary file")
        return path, data, stamp.size

    def _resolved(self, given: str) -> str:
        """Return the path of a file in the form in which a walk has it.

        Raises:
            UserError: there is no such file, or it is left out. The message says why.
        """
        sandbox = Sandbox(self.root, suggests=False)
        if sandbox.root != self.root:
            raise UserError(f"{str(self.root)!r} is a link to another folder now")
        reason = ""
        for path in self._readings(given):
            try:
                left_out = Walk(READABLE).reason_for(sandbox, path)
            except (OSError, ValueError):
                continue
            if left_out is None:
                return path
            reason = reason or f"{shown(path)} cannot be read: it is left out ({left_out})"
        raise UserError(reason or f"there is no file {shown(given)} to read: name one as `locate` does")

    def _readings(self, given: str) -> Iterator[str]:
        """Yield what a path may mean: as it is, and without the quotes in which the command line prints it."""
        for text in (given, unescaped(given)):
            if text is None or "\0" in text:
                continue
            absolute = Path(os.path.normpath(self.root / text))  # no link is followed, so ".." can be resolved by name
            for alias in self._aliases:
                if absolute != alias and absolute.is_relative_to(alias) and not text.endswith("/"):
                    yield absolute.relative_to(alias).as_posix()
                    break


def _suffix(path: str) -> str:
    return path.rpartition(".")[2].lower()


class Mentions:
    """Paths and names of files in a question.

    Args:
        question: question, in which case does not count.
        root: folder of the repository. Absolute paths may hold it, or a folder of its name on another machine.

    Attributes:
        names_path: the question holds the whole path of one of the files that were looked for.
        is_a_name: the question is nothing but the path or name of one of these files.
    """

    def __init__(self, question: str, root: Path) -> None:
        text = question.replace(f"{root}/", "./")
        if root.name:
            text = re.sub(rf"(?<![\w.])/(?:[^\s/]+/)*?{re.escape(root.name)}/", "./", text)
        self._text = text.strip().strip("`'\"").lower()
        self.names_path = self.is_a_name = False

    def of(self, paths: Iterable[str]) -> list[str]:
        """Return the files that the question names: by their whole paths if it holds any, else by their last parts."""
        by_path, by_name = list[str](), list[str]()
        for path in paths:
            name = path.rpartition("/")[2].lower()
            if name not in self._text:
                continue
            lower = path.lower()
            mention = self._longest(lower)
            if mention == lower and "/" in path:
                by_path.append(path)
            elif mention == self._text.removeprefix("./") or ("." in name[1:] and mention):
                by_name.append(path)
            self.is_a_name |= bool(mention) and mention == self._text.removeprefix("./")
        self.names_path |= bool(by_path)
        return by_path or by_name

    def _longest(self, path: str) -> str:
        """Return the longest end of a path, from a name on, that the question holds as a whole; "" if there is none."""
        name, longest = path.rpartition("/")[2], ""
        start = self._text.find(name)
        while start >= 0:
            end = start + len(name)
            if not re.match(r"[\w-]|\.\w|/", self._text[end : end + 2]):
                longest = max(longest, self._ending(path, end), key=len)
            start = self._text.find(name, start + 1)
        return longest

    def _ending(self, path: str, end: int) -> str:
        """Return the longest end of a path with which the question up to an offset ends as a whole; "" for none."""
        names = path.split("/")
        before = self._text[:end]
        for count in range(len(names)):
            ending = "/".join(names[count:])
            if before.endswith(ending):
                outside = before[: len(before) - len(ending)][-2:]
                if count > 0:
                    border = r"[\w$@/.-]$"
                elif "/" in path:  # behind another path, such as that of the repository
                    border = r"[\w.$@-]$"
                else:  # behind "./"
                    border = r"[\w$@-][/.]?$"
                return "" if re.search(border, outside) else ending
        return ""
