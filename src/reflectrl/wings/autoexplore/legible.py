"""Text of a file without encoded data, such as the pictures in a notebook.

Encoded data holds words by chance ("box" in 300 kB of base64), and uses up the limit on the text that is searched. Line
breaks are kept, so lines have the same numbers as in the file.
"""

from __future__ import annotations

import re
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text

CONTENT_BYTES = 256 * 1024
"""Largest part of a file that is searched, from its beginning, without encoded data."""
WITH_ENCODED_BYTES = 16 * CONTENT_BYTES
"""Largest part of a file with encoded data that is read to reach `CONTENT_BYTES` of text."""
LONG = 60
"""Shortest run without white space that is checked for encoded data. Base64 is often broken into lines of 76."""
NO_WORDS = 1000
"""Longest run of ASCII characters without white space that may hold words. Longer runs are minified code or tables of
numbers. (Scripts without spaces between words are not ASCII.)"""
CHANGES = 0.45
"""Share of neighbours of different kinds (lower case, upper case, digit, other) above which such a run is encoded data.
Base64 has 0.64 on average. Names and paths, whose parts have four letters or more, have less than 0.4."""

_LONG_RUN = re.compile(rf"\S{{{LONG},}}")
_DATA_ADDRESS = re.compile(r"data:[\w.+/-]*(?:;[\w.=-]+)*,[^\s\"'<>)]*")
_MAPPINGS = re.compile(r'"mappings"\s*:\s*"[^"]*"')
"""Data of a source map."""
_BASE64 = re.compile(rf"(?:[A-Za-z0-9+/=_-]|\\n){{{LONG},}}")
_KINDS = str.maketrans(ascii_lowercase + ascii_uppercase + digits, "a" * 26 + "A" * 26 + "0" * 10)
_OUTPUTS = '"outputs": ['


class Legible(NamedTuple):
    """Searchable text of a file."""

    text: str
    complete: bool = True
    """True if `text` is all readable text of the file."""


def legible(repository: Repository, path: str) -> Legible:
    """Return the searchable text of a file; "" if the file cannot be read.

    A notebook of more than `CONTENT_BYTES` loses its outputs, so that the source of all its cells can be found.
    """
    content = repository.read(path, CONTENT_BYTES)
    if not isinstance(content, Text):
        return Legible("")
    text, notebook = without_encoded(content.text), path.endswith(".ipynb")
    if not content.complete and (notebook or len(text) < len(content.text)):
        longer = repository.read(path, WITH_ENCODED_BYTES)
        if isinstance(longer, Text):
            content, text = longer, without_encoded(longer.text)
    if notebook and len(text) > CONTENT_BYTES:
        text = _without_outputs(text)
    return Legible(text[:CONTENT_BYTES], content.complete and len(text) <= CONTENT_BYTES)


def without_encoded(text: str) -> str:
    """Remove data URLs, source maps, base64, and runs without white space that are too long to hold words."""
    if '"mappings"' in text:
        text = _MAPPINGS.sub(lambda match: "\n" * match[0].count("\n"), text)
    return _LONG_RUN.sub(lambda run: _words_in(run[0]), text)


def _words_in(run: str) -> str:
    """Remove encoded data from a run without white space."""
    run = _DATA_ADDRESS.sub(" ", run)
    if len(run) > NO_WORDS and run.isascii():
        return ""
    return _BASE64.sub(lambda match: " " if _is_encoded(match[0]) else match[0], run)


def _is_encoded(run: str) -> bool:
    """Return whether lower case, upper case and digits alternate as often as in random data."""
    kinds = run.replace("\\n", "").translate(_KINDS)
    changes = sum(left != right for left, right in pairwise(kinds))
    return changes > CHANGES * len(kinds)


def _without_outputs(text: str) -> str:
    """Blank the outputs of a notebook's cells. The notebook must be formatted line by line, as Jupyter does."""
    lines, closing = list[str](), ""
    for line in text.split("\n"):
        if closing:
            closing = "" if line.rstrip(",") == closing else closing
            lines.append("")
        elif line.strip() == _OUTPUTS:
            closing = line.removesuffix(_OUTPUTS) + "]"
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines)
