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

_ANY_DEPTH = {"(?:.+/)?": "(?:[^/]+/)*?", "(?:/.+)?": "(?:/[^/]+)*?"}
"""How pathspec writes `**`, and the same with fewer ways to match."""
_TAIL = "(?:(?P<ps_d>/)|$)"
"""Ends most of pathspec's expressions: the entry itself, or anything below it."""
_STAR = re.escape("[^/]*")
_BRACKET = r"\[\^?\]?[^\]]*\]"
_PIECE = rf"\\.|{_BRACKET}|[^\\\[/(]"
_BETWEEN_STARS = re.compile(rf"{_STAR}((?:{_PIECE})*?)(?={_STAR})", re.DOTALL)
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
    line = line.removesuffix("\r")
    line = line if line.endswith("\\ ") else line.rstrip(" ")
    folders_only = line.endswith("/")
    try:
        regex, ignored = GitIgnoreSpecPattern.pattern_to_regex(line.removesuffix("/"))
        if regex is None or ignored is None:
            return None
        return _compiled(_whole(regex) + ("/" if folders_only else "/?")), ignored
    except (ValueError, re.error):
        return None


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
