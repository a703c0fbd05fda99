"""What is to be read in a file: its text without encoded data, such as the pictures in a notebook.

Encoded data holds words by chance ("box" in 300 kB of base64), and takes the room of what can be read behind it. Line
breaks stay where they are, so lines have the same numbers as in the file.
"""

from __future__ import annotations

import re
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple

from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text

CONTENT_BYTES = 256 * 1024
"""So much of a file is searched, from its beginning, encoded data not counted."""
WITH_ENCODED_BYTES = 16 * CONTENT_BYTES
"""So much is read of a file with encoded data to get there."""
LONG = 60
"""Characters without a space in which encoded data is looked for. Base64 is often broken into lines of 76."""
NO_WORDS = 1000
"""Longer runs of ASCII characters without a space are no words: minified code, tables of numbers. (Not all writing puts
spaces between words, but all that does not is beyond ASCII.)"""
CHANGES = 0.45
"""Share of neighbours of different kinds (small, capital, digit, other) beyond which such a run is encoded. In base64
it is 0.64 on average; in names and paths, whose parts have four letters or more, it is below 0.4."""

_LONG_RUN = re.compile(rf"\S{{{LONG},}}")
_DATA_ADDRESS = re.compile(r"data:[\w.+/-]*(?:;[\w.=-]+)*,[^\s\"'<>)]*")
_MAPPINGS = re.compile(r'"mappings"\s*:\s*"[^"]*"')
"""What a source map consists of."""
_BASE64 = re.compile(rf"(?:[A-Za-z0-9+/=_-]|\\n){{{LONG},}}")
_KINDS = str.maketrans(ascii_lowercase + ascii_uppercase + digits, "a" * 26 + "A" * 26 + "0" * 10)
_OUTPUTS = '"outputs": ['


class Legible(NamedTuple):
    """The text of a file as it is searched."""

    text: str
    complete: bool = True
    """Whether that is all that can be read of the file."""


def legible(repository: Repository, path: str) -> Legible:
    """The text of a file as it is searched; "" where it cannot be read.

    Of a notebook with more than `CONTENT_BYTES`, the outputs are left out, so that the source of its cells is found.
    """
    found = repository.read(path, CONTENT_BYTES)
    if not isinstance(found, Text):
        return Legible("")
    text, notebook = without_encoded(found.text), path.endswith(".ipynb")
    if not found.complete and (notebook or len(text) < len(found.text)):
        whole = repository.read(path, WITH_ENCODED_BYTES)
        if isinstance(whole, Text):
            found, text = whole, without_encoded(whole.text)
    if notebook and len(text) > CONTENT_BYTES:
        text = _without_outputs(text)
    return Legible(text[:CONTENT_BYTES], found.complete and len(text) <= CONTENT_BYTES)


def without_encoded(text: str) -> str:
    """The text without data addresses, source maps, base64, and runs without a space that are too long for words."""
    if '"mappings"' in text:
        text = _MAPPINGS.sub(lambda found: "\n" * found[0].count("\n"), text)
    return _LONG_RUN.sub(lambda run: _words_in(run[0]), text)


def _words_in(run: str) -> str:
    """What is left of a run without a space."""
    run = _DATA_ADDRESS.sub(" ", run)
    if len(run) > NO_WORDS and run.isascii():
        return ""
    return _BASE64.sub(lambda found: " " if _is_encoded(found[0]) else found[0], run)


def _is_encoded(run: str) -> bool:
    """Whether letters, capitals and digits follow each other as they do by chance."""
    kinds = run.replace("\\n", "").translate(_KINDS)
    changes = sum(one != other for one, other in pairwise(kinds))
    return changes > CHANGES * len(kinds)


def _without_outputs(text: str) -> str:
    """A notebook without the outputs of its cells, if it is written line by line, as Jupyter does."""
    kept, closing = list[str](), ""
    for line in text.split("\n"):
        if closing:
            closing = "" if line.rstrip(",") == closing else closing
            kept.append("")
        elif line.strip() == _OUTPUTS:
            closing = line.removesuffix(_OUTPUTS) + "]"
            kept.append("")
        else:
            kept.append(line)
    return "\n".join(kept)
