"""Extract the headings of Markdown and reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from reflectrl.wings.autoexplore.definitions import Definition, one_line, sentence

_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_UNDERLINE = re.compile(r"(=+|-{2,})[ \t]*")
_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*")
_NO_PROSE = re.compile(r"[-=*_ \t]{3,}+$|[ \t]*+(?:[|<!#>:\[+]|[-*] |\.\. |\d+[.)] |```|~~~)")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,200})\]\([^()\n]{0,300}\)|\[([^\[\]\n]{0,200})\]\[[^\[\]\n]{0,100}\]")
_MARKS = re.compile(r"<[^<>\n]{0,200}>|[*`]+|^[ \t]*#+|(?<!#)#++[ \t]*+$|\\(?=\W)|:\w+:(?=`)")
_MOST_PROSE = 12
"""Number of lines below a heading that are searched for its first sentence."""

Heading = tuple[int, int, str, int]
"""Line (from 1), level (from 1), title, and the index of the line after the heading."""


def markdown_outline(text: str) -> Iterator[Definition]:
    """Yield headings of both forms, outside of code. The parent is the nearest heading of a higher level."""
    lines = text.split("\n")
    return _nested(lines, _markdown_headings(lines))


def rst_outline(text: str) -> Iterator[Definition]:
    """Yield titles with a line of punctuation below, and perhaps above. Levels follow the order of new styles."""
    lines = text.split("\n")
    return _nested(lines, _rst_headings(lines))


def title_in_front(text: str) -> str:
    """Return the title in the YAML front matter of a Markdown text; "" if there is none."""
    lines = text.split("\n", 60)
    for line in lines[1 : _end_of_front(lines)]:
        if line.startswith("title:"):
            return one_line(line.removeprefix("title:").strip().strip("\"'"))
    return ""


def plain(title: str) -> str:
    """Remove the markup of links, code and emphasis from a heading."""
    return one_line(_MARKS.sub("", _LINK.sub(lambda link: link[1] or link[2] or "", title[:1000])))


def _end_of_front(lines: list[str]) -> int:
    """Return the index of the line after the YAML front matter; 0 if there is none."""
    if lines[0].rstrip() == "---":
        ends = (index for index, line in enumerate(lines[1:200], 2) if line.rstrip() in ("---", "..."))
        return next(ends, 0)
    return 0


def _markdown_headings(lines: list[str]) -> Iterator[Heading]:
    fence = ""
    for index in range(_end_of_front(lines), len(lines)):
        line = lines[index]
        if (mark := _FENCE.match(line)) is not None and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif fence:
            continue
        elif (atx := _ATX.match(line)) is not None:
            yield index + 1, len(atx[1]), plain(atx[2]), index + 1
        elif index + 1 < len(lines) and (below := _UNDERLINE.fullmatch(lines[index + 1])) is not None:
            alone = index == 0 or not lines[index - 1].strip()
            if alone and line.strip() and not _NO_PROSE.match(line):
                yield index + 1, 1 if below[1][0] == "=" else 2, plain(line), index + 2


def _rst_headings(lines: list[str]) -> Iterator[Heading]:
    levels: dict[tuple[str, bool], int] = {}
    for index in range(len(lines) - 1):
        below, title = _ADORNMENT.fullmatch(lines[index + 1]), lines[index].strip()
        if below is None or not title or _ADORNMENT.fullmatch(lines[index]) or len(below[0].rstrip()) < len(title):
            continue
        above = _ADORNMENT.fullmatch(lines[index - 1]) if index else None
        over = above is not None and above[1] == below[1]
        if lines[index][0].isspace() and not over:
            continue
        if not over and index and lines[index - 1].strip() and not lines[index - 1].startswith(".."):
            continue  # not a title, but the last row of a table
        yield index + 1, levels.setdefault((below[1], over), len(levels) + 1), plain(title), index + 2


def _nested(lines: list[str], headings: Iterator[Heading]) -> Iterator[Definition]:
    open_: list[tuple[int, str]] = []
    for line, level, title, end in headings:
        while open_ and open_[-1][0] >= level:
            open_.pop()
        if title:
            yield Definition(line, "heading", title, open_[-1][1] if open_ else "", _prose(lines, end))
            open_.append((level, title))


def _prose(lines: list[str], start: int) -> str:
    """Return the first sentence below a heading; "" if something other than prose comes first."""
    below = lines[start : start + _MOST_PROSE]
    while below and not below[0].strip():
        below = below[1:]
    if not below or below[0][0].isspace() or _NO_PROSE.match(below[0]) or any(map(_ADORNMENT.fullmatch, below[1:2])):
        return ""
    return sentence(plain("\n".join(takewhile(str.strip, below))))
