"""Rules of .gitignore files, applied as git does.

We walk from the root downwards, in git's order: the last rule that matches *this entry* decides, a deeper .gitignore
precedes a higher one, and an ignored folder is not entered. So a rule must match the whole path of an entry, and the
path of a folder ends with "/". As in git, patterns and names are compared byte by byte.

A repository is untrusted, so no rule may take very long. Each run of characters between two `*` of a name, and each run
of names between two `**`, is matched at its first occurrence, without backtracking. Any number of plain names, paths
and endings (`*.log`) is looked up in tables. The few limits on other patterns never let a file through that git would
ignore: `Rules.is_partial` says that the whole folder has to be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MOST_BYTES = 16 * 1024 * 1024
"""Largest file of rules that is read."""
MOST_WILDCARDS = 10_000
"""Largest number of patterns of a file that need a regular expression."""
MOST_CHARACTERS = 512 * 1024
"""Largest number of characters of these patterns together."""
_AT_ONCE = 100
"""Number of patterns that are joined into one regular expression."""

_POSIX = {
    "alnum": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "alpha": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(1, 32), 127])),
    "digit": "0123456789",
    "graph": "".join(map(chr, range(33, 127))),
    "lower": "abcdefghijklmnopqrstuvwxyz",
    "print": "".join(map(chr, range(32, 127))),
    "punct": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "space": " \t\n\r",
    "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "xdigit": "0123456789ABCDEFabcdef",
}
"""Character classes that git knows within brackets."""
_ALL = frozenset(map(chr, range(1, 256)))
_ANY, _STAR, _SLASH, _DEEP = r"[^/\0]", r"[^/\0]*", "/", "**/"
"""Pieces of a pattern besides characters: `?`, `*`, a slash, and `**` for any number of folders."""
_FOLDER = "\0"
"""End of a folder's name or path when it is compared with an expression. No name holds a null character."""
_SPECIAL = re.compile(r"[*?\[\\]")


class MalformedError(ValueError):
    """The pattern matches nothing, such as one with a bracket that is never closed."""


class _Rule(NamedTuple):
    """Line of a file of rules, parsed.

    Attributes:
        pattern: pattern without "!" in front and "/" at its end.
        is_ignored: False if the line re-includes what matches.
        folders_only: the line ends with "/".
        of_name: the pattern has no slash, so it is compared with names at any depth.
    """

    pattern: str
    is_ignored: bool
    folders_only: bool
    of_name: bool


class _Last:
    """Key → number of the last rule with it, among all rules and among those for folders only."""

    def __init__(self) -> None:
        self._of_all: dict[str, int] = {}
        self._of_folders: dict[str, int] = {}

    def add(self, key: str, number: int, folders_only: bool) -> None:
        """Add a rule. Numbers must increase."""
        (self._of_folders if folders_only else self._of_all)[key] = number

    def get(self, key: str, is_folder: bool) -> int:
        """Return the number of the last rule for an entry; -1 if there is none."""
        number = self._of_all.get(key, -1)
        return max(number, self._of_folders.get(key, -1)) if is_folder else number


class _Expressions:
    """Patterns as regular expressions, the last one first."""

    def __init__(self, patterns: list[tuple[int, str]]) -> None:
        self._chunks: list[tuple[re.Pattern[str], list[int]]] = []
        patterns = patterns[::-1]
        for start in range(0, len(patterns), _AT_ONCE):
            chunk = patterns[start : start + _AT_ONCE]
            joined = "|".join(f"({expression})" for _, expression in chunk)
            self._chunks.append((re.compile(joined, re.DOTALL), [number for number, _ in chunk]))

    def last(self, text: str, least: int) -> int:
        """Return the number of the last rule that matches; `least` if that is larger."""
        for expression, numbers in self._chunks:
            if numbers[0] < least:
                break
            match = expression.fullmatch(text)
            if match is not None and match.lastindex is not None:
                return max(least, numbers[match.lastindex - 1])
        return least


class Rules:
    """Rules of a single file.

    Args:
        base: path of the folder that holds the file.
        text: contents of the file. Lines that git would not understand are ignored.
        prefix: path from that folder to the root, if the folder lies above the root. Then `base` is "".

    Attributes:
        is_partial: there are more patterns than can be applied, so everything in the folder has to be left out.

    Rules are equal if they come from the same text at the same place.
    """

    def __init__(self, base: str, text: str, prefix: str = "") -> None:
        self._source = base, text, prefix
        self._start = len(base) + 1 if base else 0
        self._prefix = prefix + "/" if prefix else ""
        self._is_ignored: list[bool] = []
        self._names, self._paths, self._endings = _Last(), _Last(), _Last()
        self._sizes: list[int] = []
        self.is_partial = False
        name_patterns, path_patterns = list[tuple[int, str]](), list[tuple[int, str]]()
        characters = 0
        for rule in _rules_in(_as_bytes(text)):
            number = len(self._is_ignored)
            if not self._add_plain(rule, number):
                characters += len(rule.pattern)
                if len(name_patterns) + len(path_patterns) >= MOST_WILDCARDS or characters > MOST_CHARACTERS:
                    self.is_partial, name_patterns, path_patterns = True, [], []
                    break
                try:
                    expression = _expression(rule)
                except MalformedError:
                    continue
                (name_patterns if rule.of_name else path_patterns).append((number, expression))
            self._is_ignored.append(rule.is_ignored)
        self._name_patterns, self._path_patterns = _Expressions(name_patterns), _Expressions(path_patterns)

    def _add_plain(self, rule: _Rule, number: int) -> bool:
        """Add a rule to the tables; return False if it needs a regular expression."""
        pattern = rule.pattern
        if _SPECIAL.search(pattern) is None:
            table = self._names if rule.of_name else self._paths
            table.add(pattern.removeprefix("/"), number, rule.folders_only)
            return True
        if rule.of_name and pattern[0] == "*" and _SPECIAL.search(pattern, 1) is None:
            self._endings.add(pattern[1:], number, rule.folders_only)
            if len(pattern) - 1 not in self._sizes:
                self._sizes.append(len(pattern) - 1)
            return True
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self._source)

    def verdict(self, path: str) -> bool | None:
        """Return whether an entry below the base is ignored; None if no rule matches. A folder's path ends with "/"."""
        if not self._is_ignored:
            return None
        is_folder = path.endswith("/")
        entry = _as_bytes(self._prefix + path[self._start :].rstrip("/"))
        name = entry.rpartition("/")[2]
        last = max(self._names.get(name, is_folder), self._paths.get(entry, is_folder))
        for size in self._sizes:
            if size <= len(name):
                last = max(last, self._endings.get(name[len(name) - size :], is_folder))
        end = _FOLDER * is_folder
        last = self._name_patterns.last(name + end, last)
        last = self._path_patterns.last(entry + end, last)
        return self._is_ignored[last] if last >= 0 else None


def is_ignored(path: str, rules: tuple[Rules, ...]) -> bool:
    """Return whether the rules from the root down to an entry ignore it. A folder's path ends with "/"."""
    verdicts = (file_rules.verdict(path) for file_rules in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


@lru_cache(maxsize=1024)
def rules_of(base: str, data: bytes, prefix: str = "") -> Rules:
    """Return the rules of a file with these contents, or their first `MOST_BYTES` and more. It is parsed once."""
    rules = Rules(base, data[:MOST_BYTES].decode("utf-8", "surrogateescape"), prefix)
    rules.is_partial |= len(data) > MOST_BYTES
    return rules


def _as_bytes(text: str) -> str:
    """Return a text with one character for each byte, as git compares them."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def _rules_in(text: str) -> Iterator[_Rule]:
    """Yield the rules of a file."""
    for whole_line in text.removeprefix("\xef\xbb\xbf").split("\n"):  # the mark of UTF-8, byte by byte
        line = whole_line.removesuffix("\r").partition("\0")[0]  # git stops reading at a NUL
        if not line or line[0] == "#":
            continue
        for reading in _readings(line):
            is_ignored = not reading.startswith("!")
            pattern = reading.removeprefix("!")
            folders_only = pattern.endswith("/")
            pattern = pattern.removesuffix("/")
            if pattern:
                yield _Rule(pattern, is_ignored, folders_only, "/" not in pattern)


def _readings(line: str) -> tuple[str, ...]:
    """Return a line, and its likely meaning: for git, a tab at the end belongs to the name, but no author sees it.

    An ignored file may hold a secret, so both are left out.
    """
    line = _trimmed(line)
    trimmed = line.rstrip(" \t\r")
    is_unseen = "\t" in line[len(trimmed) :] and not trimmed.endswith("\\") and not line.startswith("!")
    return (line, trimmed) if is_unseen and trimmed else (line,)


def _trimmed(line: str) -> str:
    """Return the line without trailing spaces, except for a space after a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return line[: len(text) + 1] if backslashes % 2 else text


def _expression(rule: _Rule) -> str:
    """Translate a pattern into a regular expression for the whole name or path of an entry.

    Raises:
        MalformedError: the pattern matches nothing.
    """
    pieces = _pieces(rule.pattern, has_depth=not rule.of_name)
    runs = [list[str]()]  # what stands between two `**`
    for piece in pieces:
        if piece == _DEEP:
            runs.append([])
        else:
            runs[-1].append(piece)
    expression = _of_run(runs[0])
    for run in runs[1:-1]:
        # A run ends with a slash here, so its first occurrence is as good as any.
        expression += f"(?>(?:.*?/)??{_of_run(run)})"
    if len(runs) > 1:
        # At the end of a pattern, `folder/**` means everything inside.
        is_inside = not runs[-2] or runs[-2][-1] == _SLASH
        expression += f"(?:.*/)?{_of_run(runs[-1])}" if runs[-1] else ".+" if is_inside else ".*"
    return expression + (r"\0" if rule.folders_only else r"\0?")


def _of_run(pieces: list[str]) -> str:
    """Return the expression of pieces without `**`. What stands between two `*` of a name is matched at once."""
    expression, since_star = "", None
    for piece in pieces:
        if piece == _STAR:
            if since_star is not None:
                expression += f"(?>{_STAR}?{since_star})"
            since_star = ""
        elif piece == _SLASH:
            expression += (_STAR + since_star if since_star is not None else "") + _SLASH
            since_star = None
        elif since_star is not None:
            since_star += piece
        else:
            expression += piece
    return expression + (_STAR + since_star if since_star is not None else "")


def _pieces(pattern: str, has_depth: bool) -> list[str]:
    """Split a pattern into regular expressions of single characters, stars, slashes, and `**`.

    Args:
        pattern: pattern without the slash at its end.
        has_depth: `**` may stand for folders.
    """
    pattern = pattern.removeprefix("/")
    special = _SPECIAL.search(pattern)
    plain = special.start() if special is not None else len(pattern)
    pieces, index = list[str](), 0
    brackets = _Brackets(pattern)
    while index < len(pattern):
        character = pattern[index]
        if character == "*":
            end = index + len(pattern[index:]) - len(pattern[index:].lstrip("*"))
            # git also takes `**` for folders right after the plain beginning of a pattern, as in `ab**/c`.
            is_begin = index in (0, plain) or pattern[index - 1] == "/"
            is_deep = has_depth and end - index > 1 and is_begin and pattern[end : end + 1] in ("", "/")
            if not is_deep:
                if not pieces or pieces[-1] != _STAR:
                    pieces.append(_STAR)
            elif not pieces or pieces[-1] != _DEEP:
                pieces.append(_DEEP)
            index = end + (is_deep and end < len(pattern))
            if is_deep and index == len(pattern) and pattern.endswith("/"):
                raise MalformedError  # `**//`: a name cannot be empty
        elif character == "[":
            members, index = brackets.read(index)
            pieces.append(f"[{''.join(map(_escaped, sorted(members)))}]")
        else:
            index += character == "\\"
            if index == len(pattern):
                raise MalformedError  # a backslash without a character
            character_piece = _ANY if character == "?" else re.escape(pattern[index])
            pieces.append(_SLASH if pattern[index] == "/" else character_piece)
            index += 1
    return pieces


def _escaped(character: str) -> str:
    return f"\\x{ord(character):02x}"


class _Brackets:
    """Brackets of a pattern, such as `[!a-z[:digit:]]`."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._closing = -1

    def read(self, start: int) -> tuple[frozenset[str], int]:
        """Return the characters that a bracket matches, never a slash, and the index after it.

        Raises:
            MalformedError: the bracket has no end, matches nothing, or names an unknown class.
        """
        index = start + 1
        is_negated = self._at(index) in ("!", "^")
        index += is_negated
        members, previous, is_first = set[str](), "", True
        while is_first or self._at(index) != "]":
            is_first = False
            character = self._at(index)
            if character == "[" and self._pattern[index + 1 : index + 2] == ":":
                name_end = self._closing_after(index + 2)
                if name_end - 1 >= index + 2 and self._pattern[name_end - 1] == ":":
                    members.update(self._class(self._pattern[index + 2 : name_end - 1]))
                    previous, index = "", name_end + 1
                    continue
            if character == "-" and previous and self._pattern[index + 1 : index + 2] not in ("", "]"):
                index += 1
                index += self._at(index) == "\\"
                members.update(map(chr, range(ord(previous), ord(self._at(index)) + 1)))
                previous, index = "", index + 1
                continue
            index += character == "\\"
            previous = self._at(index)
            members.add(previous)
            index += 1
        matched = (_ALL - members if is_negated else frozenset(members)) - {"/"}
        if not matched:
            raise MalformedError
        return matched, index + 1

    def _at(self, index: int) -> str:
        if index >= len(self._pattern):
            raise MalformedError
        return self._pattern[index]

    def _closing_after(self, index: int) -> int:
        """Return the index of the next "]". It is looked for once, since a pattern may be long and hostile."""
        if self._closing < index:
            self._closing = self._pattern.find("]", index)
            if self._closing < 0:
                raise MalformedError
        return self._closing

    @staticmethod
    def _class(name: str) -> str:
        if name not in _POSIX:
            raise MalformedError
        return _POSIX[name]
