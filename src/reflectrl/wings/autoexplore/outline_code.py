"""Extract definitions from source code by regular expressions. Nesting is inferred from indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from reflectrl.wings.autoexplore.comments import Comments
from reflectrl.wings.autoexplore.definitions import Definition, one_line
from reflectrl.wings.autoexplore.outline_languages import PYTHON, Language
from reflectrl.wings.autoexplore.outline_python import docstring_after

LONGEST_LINE = 1000
"""Longest line that is examined. Longer lines were not written by hand."""
_MOST_PARAMETERS = 2000
"""Largest number of characters that are read between a function's parentheses."""
_GOES_ON = re.compile(
    r"[ \t]*(?:[)}\]{>]|#[ \t]*(?:if|el|endif|define|undef|pragma|include)|where\b|"
    r"(?:public|private|protected|signals|slots)\b[ \t\w]*:)"
)
"""Lines that do not end the block above although they are not indented further."""
_IDENTIFIER = re.compile(r"[\w$]+")
_FUNCTION_POINTER = re.compile(r"\(\s*[*^]\s*(\w+)")
_UNNAMED = re.compile(r"[*/]$|[{\[][^{}\[\]]*[}\]]")
"""Elements in the place of a parameter's name: Python's `*` and `/`, and JavaScript's destructuring patterns."""
_PLAIN = re.compile(r"[\w.\"'-]{1,30}")


class _Scope(NamedTuple):
    """Definition whose block is open."""

    indent: int
    name: str
    is_class: bool


def code_outline(text: str, language: Language, comments: Comments) -> Iterator[Definition]:
    """Yield definitions at the top level and in classes, in line order. The contents of functions are left out."""
    # Comments, strings and overlong lines become blanks. The length is kept, so that offsets fit the original text.
    masked = language.masked.sub(lambda match: _blank(match[0]), text)
    masked = "\n".join(line if len(line) <= LONGEST_LINE else " " * len(line) for line in masked.split("\n"))
    matches = _matches(masked, language)
    lines = text.split("\n")
    scopes: list[_Scope] = []
    for line_number, line in enumerate(masked.split("\n"), 1):
        if not line or line.isspace():
            continue
        indent = len(line) - len(line.lstrip())
        while scopes and scopes[-1].indent >= indent and not _GOES_ON.match(line):
            scopes.pop()
        kind, match = matches.get(line_number, ("", None))
        if match is None or not (scopes[-1].is_class if scopes else kind != "method"):  # inside a function
            continue
        name = match["name"]
        if kind != "within":
            enclosing = match.groupdict().get("parent") or (scopes[-1].name if scopes else "")
            kind = "method" if kind == "function" and enclosing else kind
            if language is not PYTHON:
                doc = comments.above(lines, line_number)
            else:
                doc = _doc(text, masked, match) if kind != "constant" else ""
            signature = _signature(text, masked, match, language)
            yield Definition(line_number, kind, one_line(name), enclosing, doc, signature)
        if kind != "constant":
            scopes.append(_Scope(indent, name, kind in ("class", "within")))


def _blank(text: str) -> str:
    return "\n".join(" " * len(line) for line in text.split("\n"))


def _matches(masked: str, language: Language) -> dict[int, tuple[str, re.Match[str]]]:
    """Return line → kind and match of the first rule that matches there."""
    by_start: dict[int, tuple[str, re.Match[str]]] = {}
    for kind, expression in language.rules:
        for match in expression.finditer(masked):
            by_start.setdefault(match.start(), (kind, match))
    by_line, line, reached = {}, 1, 0
    for start in sorted(by_start):
        line, reached = line + masked.count("\n", reached, start), start
        by_line[line] = by_start[start]
    return by_line


def _doc(text: str, masked: str, match: re.Match[str]) -> str:
    """Return the docstring's first sentence of a Python class or function; "" if there is none."""
    start = match.end()
    if masked[start - 1] == "(":
        start = max((end for _, end in _between_commas(masked, start)), default=start)
    colon = masked.find(":", start, start + _MOST_PARAMETERS)
    return docstring_after(text, colon) if colon >= 0 else ""


def _signature(text: str, masked: str, match: re.Match[str], language: Language) -> str:
    start = match.end()
    if masked[start - 1] != "(":
        return ""
    parameters = (_parameter(text[slice(*span)], language) for span in _between_commas(masked, start))
    return one_line(f"({', '.join(filter(None, parameters))})")


def _between_commas(masked: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each parameter, up to the parenthesis that closes the one before `start`."""
    depth = 0
    for position in range(start, min(len(masked), start + _MOST_PARAMETERS)):
        character = masked[position]
        if character in "([{<":
            depth += 1
        elif depth and (character in ")]}" or (character == ">" and masked[position - 1] not in "-=")):
            depth -= 1
        elif not depth and character in ",)":
            yield start, position
            start = position + 1
            if character == ")":
                return


def _parameter(written: str, language: Language) -> str:
    """Return the name of a parameter and its default, "..." unless plain; "" for `void`, `self` and `cls`."""
    left, equals, default = (part.strip() for part in written.partition("="))
    if (pointer := _FUNCTION_POINTER.search(left)) is not None:
        return pointer[1]
    if not language.type_first and (unnamed := _UNNAMED.match(left)) is not None:
        return unnamed[0]
    typed = not language.type_first and ":" in left
    names = _IDENTIFIER.findall(left.partition(":")[0] if typed else re.sub(r"\[[^\]]*\]?", "", left))
    if not names or names[-1] in ("void", "self", "cls"):
        return ""
    name = names[-1] if typed or language.type_first else names[0]
    stars = "" if language.type_first else left[: len(left) - len(left.lstrip("*.&"))]
    return stars + name + (f"={default if _PLAIN.fullmatch(default) else '...'}" if equals else "")
