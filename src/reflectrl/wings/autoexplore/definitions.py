"""Elements of an outline, and functions that cut prose to one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_CHARACTERS = 300
"""Longest name, sentence or signature. Longer ones are cut."""
MOST_DEFINITIONS = 2000
"""Largest number of definitions of a file. Later ones are dropped."""
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_TAG = re.compile(
    r"(?m)^[ \t]*(?:[@\\]\w|:(?:param|return|raise|type)|(?:Args|Arguments|Parameters|Returns|Raises):[ \t]*$)"
)
_MARKUP = re.compile(r"</?[a-zA-Z][^<>\n]{0,80}>")
_ENDS = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)(?<!\betc)[.!?](?=[\s\"'`)]*\s[\"'`(]*[A-Z0-9<{])")


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition in a file.

    Attributes:
        line: line number from 1. Only a line feed ends a line.
        kind: "class" (with interfaces, structs, enums, modules and the like), "function", "method", "constant",
            "heading", "section", "key" or "column".
        name: as written.
        parent: name of the enclosing class, heading or section; "" at the top level.
        doc: first sentence of the docstring or comment, in one line; "" if there is none.
        signature: parameters of a function: "(path, retries=3)".
    """

    line: int
    kind: str
    name: str
    parent: str = ""
    doc: str = ""
    signature: str = ""


def one_line(text: str) -> str:
    """Return text as one line: printable, white space collapsed, at most `MOST_CHARACTERS` long."""
    text = text[: 4 * MOST_CHARACTERS]
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 2].rsplit(" ", 1)[0] + " …"


def sentence(prose: str) -> str:
    """Return the first sentence of a docstring or comment, in one line; "" if it holds no letter."""
    prose = prose[: 8 * MOST_CHARACTERS].strip()
    if (tag := _TAG.search(prose)) is not None:
        prose = prose[: tag.start()]
    paragraph = _MARKUP.sub(" ", _PARAGRAPH.split(prose.strip(), 1)[0])
    end = _ENDS.search(paragraph)
    line = one_line(paragraph[: end.end()] if end else paragraph)
    return line if any(map(str.isalpha, line)) else ""
