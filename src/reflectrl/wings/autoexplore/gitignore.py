"""Rules of .gitignore files, applied as git does.

pathspec parses the lines of a .gitignore. It judges files only, by rules that may have matched a parent folder. We walk
from the root downwards and need git's order instead: the last rule that matches *this entry* decides, a deeper
.gitignore precedes a higher one, and an ignored folder is not entered. So here a rule must match the whole path of an
entry, and the path of a folder ends with "/".

A repository is untrusted, so no rule may take very long. Each run of characters between two `*` of a name is
matched at its first occurrence, without backtracking. Rules with more than three `**` are skipped, and so are all rules
after the first thousand.
"""

from __future__ import annotations

import re
import warnings
from itertools import islice

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

MOST_BYTES = 64 * 1024
"""Largest part of a .gitignore that is read."""
MOST_RULES = 1000
MOST_DOUBLE_STARS = 3
LONGEST_NAME = 255
"""Longest name of a file on nearly all systems, in characters."""

_ANY_DEPTH = {"(?:.+/)?": "(?:[^/]+/)*?", "(?:/.+)?": "(?:/[^/]+)*?"}
"""Expression that pathspec writes for `**` → equivalent expression with less backtracking."""
_TAIL = "(?:(?P<ps_d>/)|$)"
"""End of most of pathspec's expressions: the entry itself, or anything below it."""
_STAR = re.escape("[^/]*")
_BRACKET = r"\[\^?\]?[^\]]*\]"
_PIECE = rf"\\.|{_BRACKET}|[^\\\[/(]"
_BETWEEN_STARS = re.compile(rf"{_STAR}((?:{_PIECE})*?)(?={_STAR})", re.DOTALL)
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \t",
    "cntrl": "\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": '"-~!',
    "lower": "a-z",
    "print": " -~",
    "punct": ":-@!-.[-`{-~",
    "space": " \t\n\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
"""Character classes that git knows within brackets → equivalent ranges for pathspec.

None begins with "!", which would negate, and none holds "]", or "/", which a bracket never matches."""
_POSIX_CLASS = re.compile(r"\[:([^\[\]:]{0,20}):\]")
_CLASS = re.compile(rf"(\\.)|(?!\[\^/\]){_BRACKET}", re.DOTALL)


class Rules:
    """Rules of a single .gitignore file.

    Args:
        base: path of the folder that holds the file.
        text: contents of the file. Lines that git would not understand are ignored.

    Rules are equal if they come from the same text at the same place.
    """

    def __init__(self, base: str, text: str) -> None:
        self._source = base, text
        self._start = len(base) + 1 if base else 0
        lines = (reading for line in text.removeprefix("\ufeff").split("\n") for reading in _readings(line))
        rules = (rule for line in lines if (rule := _rule(line)) is not None)
        self._rules = list(islice(rules, MOST_RULES))[::-1]
        self._any = _compiled("|".join(f"(?:{rule.pattern})" for rule, _ in self._rules) or "(?!)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self._source)

    def verdict(self, path: str) -> bool | None:
        """Return whether an entry below the base is ignored; None if no rule matches. A folder's path ends with "/"."""
        entry = path[self._start :]
        if self._any.fullmatch(entry) is None:  # true for nearly all entries, and much faster than rule by rule
            return None
        return next(ignored for rule, ignored in self._rules if rule.fullmatch(entry))


def is_ignored(path: str, rules: tuple[Rules, ...]) -> bool:
    """Return whether the rules from the root down to an entry ignore it. A folder's path ends with "/"."""
    verdicts = (file_rules.verdict(path) for file_rules in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _readings(line: str) -> tuple[str, ...]:
    """Return a line, and its likely meaning: for git, a tab at the end belongs to the name, but no author sees it.

    An ignored file may hold a secret, so both are left out.
    """
    trimmed = line.rstrip(" \t\r")
    return (line, trimmed) if "\t" in line[len(trimmed) :] and not trimmed.endswith("\\") else (line,)


def _rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Parse a line into an expression for whole paths, and True to ignore or False to re-include; None if no rule."""
    line = _trimmed(line.removesuffix("\r").partition("\0")[0])  # git stops reading at a NUL
    folders_only = line.endswith("/")
    try:
        regex, ignored = GitIgnoreSpecPattern.pattern_to_regex(_plain(line.removesuffix("/")))
        if regex is None or ignored is None:
            return None
        return _compiled(_full_match(regex) + ("/" if folders_only else "/?")), ignored
    except (ValueError, re.error):
        return None


def _trimmed(line: str) -> str:
    """Return the line without trailing spaces, except for a space after a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return line[: len(text) + 1] if backslashes % 2 else text


def _plain(line: str) -> str:
    """Translate a line into the part of git's syntax that pathspec knows.

    Classes such as `[:upper:]` become ranges. Outer white space that `_trimmed` keeps is put in brackets, since
    pathspec would strip it. Each character is visited once, because a line may be long and hostile.

    Raises:
        ValueError: git does not know a class either, or a bracket has no end. Such a rule matches nothing.
    """
    pieces, i = list[str](), 0
    while i < len(line):
        if line[i] == "[":
            end = _bracket_end(line, i)
            pieces.append(_POSIX_CLASS.sub(_ranges, line[i:end]))
            i = end
        elif line[i] == "\\":
            pieces.append(line[i : i + 2])
            i += 2
        else:
            pieces.append(line[i])
            i += 1
    outer = _outer_space(pieces)
    if len(outer) > LONGEST_NAME:
        raise ValueError("longer than any name")
    for index in outer:
        pieces[index] = f"[{pieces[index]}]"
    return "".join(pieces)


def _bracket_end(line: str, start: int) -> int:
    """Return the index after the "]" of a bracket; raise ValueError if there is none."""
    i = start + 1
    i += line[i : i + 1] in ("!", "^")
    i += line[i : i + 1] == "]"  # at the first place, it is a member of the class
    while i < len(line) and line[i] != "]":
        named = _POSIX_CLASS.match(line, i)
        i = named.end() if named else i + 1 + (line[i] == "\\")
    if i >= len(line):
        raise ValueError("a bracket without an end")
    return i + 1


def _ranges(named: re.Match[str]) -> str:
    if named[1] not in _POSIX:
        raise ValueError(f"no class {named[1]!r}")
    return _POSIX[named[1]]


def _outer_space(pieces: list[str]) -> list[int]:
    """Return the indices of white space at both ends."""
    text = [i for i, piece in enumerate(pieces) if not piece.isspace()]
    first, last = (text[0], text[-1]) if text else (len(pieces), len(pieces))
    return [*range(first), *range(last + 1, len(pieces))]


def _compiled(regex: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about `[[`, and would print our source on stderr
        return re.compile(regex, re.DOTALL)


def _full_match(regex: str) -> str:
    """Make an expression of pathspec match the whole path of an entry instead of its start."""
    if sum(regex.count(double) for double in _ANY_DEPTH) > MOST_DOUBLE_STARS:
        raise ValueError("too many **")
    for double, simpler in _ANY_DEPTH.items():
        regex = regex.replace(double, simpler)
    regex = regex.removesuffix(_TAIL)
    regex = regex + ".+" if regex.endswith("/") else regex  # `folder/**`: what is inside
    regex = regex if regex.startswith("^") else ".*" + regex  # `*`: anywhere
    regex = _BETWEEN_STARS.sub(r"(?>[^/]*?\1)", regex)
    return _CLASS.sub(lambda match: match[0] if match[1] else f"(?!/){match[0]}", regex)  # `[!a]` never matches "/"
