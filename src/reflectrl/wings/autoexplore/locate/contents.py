"""Searchable text of a file: decoded, notebooks without outputs, no encoded data, a bounded length."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from reflectrl.wings.autoexplore.decoding import decode
from reflectrl.wings.autoexplore.legible import CONTENT_BYTES, WITH_ENCODED_BYTES, without_encoded
from reflectrl.wings.autoexplore.words import composed

LONG_LINE = 500
"""Files with a longer line are checked for encoded data; files that mention an encoding are checked in any case."""
_ENCODED = (b"base64", b"-----BEGIN")
_ENCODED_SUFFIXES = (".map", ".svg", ".pem", ".lock", ".crt")
_SOURCE = re.compile(r'^\s*"source": \[$')
_STRING = re.compile(r'^\s*("(?:[^"\\]|\\.)*")(,?)$')


class Contents(NamedTuple):
    """Searchable text.

    Attributes:
        text: text in composed letters (NFC). Its line numbers are the file's, except for a notebook that is stored as
            a single line.
        cut: the file continues after the text.
        undecodable: the file is in no known encoding, and read as Latin-1.
    """

    text: str
    cut: bool = False
    undecodable: bool = False


def bytes_to_read(path: str) -> int:
    """Return how much of a file is read: notebooks are long because of their outputs."""
    return WITH_ENCODED_BYTES if path.endswith(".ipynb") else CONTENT_BYTES


def contents(path: str, data: bytes, complete: bool, most: int = CONTENT_BYTES) -> Contents:
    """Return the searchable text of a file.

    Args:
        path: path, whose suffix tells the format.
        data: the file's bytes, or their beginning.
        complete: `data` is the whole file.
        most: largest number of characters of the text.
    """
    decoded = decode(data, complete)
    text = composed(decoded.text.removeprefix("\ufeff"))
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if path.endswith(".ipynb"):
        text = notebook(text)
    elif _may_be_encoded(path, data):
        text = without_encoded(text)
    undecodable = decoded.encoding == "latin-1" or not decoded.is_exact
    return Contents(text[:most], not complete or len(text) > most, undecodable)


def _may_be_encoded(path: str, data: bytes) -> bool:
    if path.endswith(_ENCODED_SUFFIXES) or any(mark in data for mark in _ENCODED):
        return True
    # A longer line covers half as long a block without an end of a line. Looking for one is faster than splitting.
    half = LONG_LINE // 2
    if all(data.find(b"\n", start, start + half) >= 0 for start in range(0, len(data) - half, half)):
        return False
    return max(map(len, data.split(b"\n")), default=0) > LONG_LINE


def notebook(text: str) -> str:
    """Return the source of a notebook's cells; the text itself if it is not a notebook.

    Jupyter writes every line of source on a line of its own. All other lines become empty, so line numbers match the
    file.
    """
    source_lines, inside, has_source = list[str](), False, False
    for line in text.split("\n"):
        string = _STRING.match(line) if inside else None
        if string is not None:
            source_lines.append(_string(string[1]).rstrip("\n"))
            has_source = True
        else:
            inside = _SOURCE.match(line) is not None
            source_lines.append("")
    return "\n".join(source_lines) if has_source else _cells(text)


def _cells(text: str) -> str:
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError):
        return without_encoded(text)
    joined = ["".join(map(str, source)) if isinstance(source, list) else str(source) for source in sources]
    return "\n\n".join(joined)


def _string(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted
