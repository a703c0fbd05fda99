"""Which entries of a folder git would ignore.

pathspec reads the lines of a .gitignore. It judges files only, though, by rules that may have matched a folder above
them, whereas we walk from the root downwards and need git's own order: the last rule that matches *this entry* decides,
a deeper .gitignore before one above it, and nothing below an ignored folder is looked at. So a rule has to match all of
an entry's path here, and the path of a folder ends with "/".

A repository is not to be trusted, so no rule may take for ever: each run of characters between two `*` of a name is
matched where it first occurs and not tried again further on, and rules with more than three `**` are passed over, as
are lines beyond the first thousand.
"""

from __future__ import annotations

import re
import warnings
from itertools import islice

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

MOST_BYTES = 64 * 1024
"""So much of a .gitignore is read."""
MOST_RULES = 1000
MOST_DOUBLE_STARS = 3
LONGEST_NAME = 255
"""Characters of a file's name, at most, on nearly all systems."""

_ANY_DEPTH = {"(?:.+/)?": "(?:[^/]+/)*?", "(?:/.+)?": "(?:/[^/]+)*?"}
"""How pathspec writes `**`, and the same with fewer ways to match."""
_TAIL = "(?:(?P<ps_d>/)|$)"
"""Ends most of pathspec's expressions: the entry itself, or anything below it."""
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
"""The classes that git knows within brackets, as ranges that pathspec reads so.

None begins with "!", which would negate, and none holds "]", or "/", which a bracket never matches."""
_POSIX_CLASS = re.compile(r"\[:([^\[\]:]{0,20}):\]")
_CLASS = re.compile(rf"(\\.)|(?!\[\^/\]){_BRACKET}", re.DOTALL)


class Rules:
    """The rules of one .gitignore.

    Args:
        base: path of the folder in which it lies.
        text: what it says. Lines that git would not understand say nothing.
    """

    def __init__(self, base: str, text: str) -> None:
        self._start = len(base) + 1 if base else 0
        found = (rule for line in text.removeprefix("\ufeff").split("\n") if (rule := _rule(line)) is not None)
        self._rules = list(islice(found, MOST_RULES))[::-1]
        self._any = _compiled("|".join(f"(?:{rule.pattern})" for rule, _ in self._rules) or "(?!)")

    def verdict(self, path: str) -> bool | None:
        """Whether an entry below the base is ignored (a folder's path ends with "/"); None if no rule speaks of it."""
        entry = path[self._start :]
        if self._any.fullmatch(entry) is None:  # true of nearly all, and much quicker than rule by rule
            return None
        return next(ignored for rule, ignored in self._rules if rule.fullmatch(entry))


def is_ignored(path: str, rules: tuple[Rules, ...]) -> bool:
    """Whether the rules on the way from the root to an entry ignore it (a folder's path ends with "/")."""
    verdicts = (each.verdict(path) for each in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """An expression for whole paths of entries, and whether it ignores them or takes them back."""
    line = _trimmed(line.removesuffix("\r").partition("\0")[0])  # to git, a NUL ends a text
    folders_only = line.endswith("/")
    try:
        regex, ignored = GitIgnoreSpecPattern.pattern_to_regex(_plain(line.removesuffix("/")))
        if regex is None or ignored is None:
            return None
        return _compiled(_whole(regex) + ("/" if folders_only else "/?")), ignored
    except (ValueError, re.error):
        return None


def _trimmed(line: str) -> str:
    """The line without the spaces at its end, but for one that a backslash keeps."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return line[: len(text) + 1] if backslashes % 2 else text


def _plain(line: str) -> str:
    """What git means by a line, in the part of its language that pathspec knows.

    Classes such as `[:upper:]` become ranges. Other white space than `_trimmed` takes away, which pathspec would take
    away as well, stands in brackets. Each character is looked at once, since a line may be long and hostile.

    Raises:
        ValueError: a class that git does not know either, or a bracket without an end; such a rule matches nothing.
    """
    found, i = list[str](), 0
    while i < len(line):
        if line[i] == "[":
            end = _bracket_end(line, i)
            found.append(_POSIX_CLASS.sub(_ranges, line[i:end]))
            i = end
        elif line[i] == "\\":
            found.append(line[i : i + 2])
            i += 2
        else:
            found.append(line[i])
            i += 1
    outer = _outer_space(found)
    if len(outer) > LONGEST_NAME:
        raise ValueError("longer than any name")
    for place in outer:
        found[place] = f"[{found[place]}]"
    return "".join(found)


def _bracket_end(line: str, start: int) -> int:
    """Where a bracket ends: behind its "]"; ValueError if there is none."""
    i = start + 1
    i += line[i : i + 1] in ("!", "^")
    i += line[i : i + 1] == "]"  # as the first one, it is a member
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
    """The places of white space at both ends."""
    text = [i for i, piece in enumerate(pieces) if not piece.isspace()]
    first, last = (text[0], text[-1]) if text else (len(pieces), len(pieces))
    return [*range(first), *range(last + 1, len(pieces))]


def _compiled(regex: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's doubts about `[[`, which would quote our source on stderr
        return re.compile(regex, re.DOTALL)


def _whole(regex: str) -> str:
    """One of pathspec's expressions, made to match the whole path of an entry instead of the start of it."""
    if sum(regex.count(double) for double in _ANY_DEPTH) > MOST_DOUBLE_STARS:
        raise ValueError("too many **")
    for double, simpler in _ANY_DEPTH.items():
        regex = regex.replace(double, simpler)
    regex = regex.removesuffix(_TAIL)
    regex = regex + ".+" if regex.endswith("/") else regex  # `folder/**`: what is inside
    regex = regex if regex.startswith("^") else ".*" + regex  # `*`: anywhere
    regex = _BETWEEN_STARS.sub(r"(?>[^/]*?\1)", regex)
    return _CLASS.sub(lambda found: found[0] if found[1] else f"(?!/){found[0]}", regex)  # `[!a]` is no "/" either
