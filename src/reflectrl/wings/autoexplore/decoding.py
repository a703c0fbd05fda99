"""Text of bytes: the one place that decides about encodings, for the search and for what is handed out."""

from __future__ import annotations

from typing import NamedTuple

from reflectrl.wings.autoexplore.index import decoded, encoding_of


class Decoded(NamedTuple):
    """Text of bytes.

    Attributes:
        text: the text, including a byte order mark of UTF-8.
        encoding: its encoding, in lower case. "latin-1" stands for bytes that are not UTF-8, of any encoding.
        is_exact: False if some bytes were replaced by U+FFFD.
    """

    text: str
    encoding: str
    is_exact: bool = True


def decode(data: bytes, complete: bool = True) -> Decoded:
    """Decode the contents of a file.

    Args:
        data: the file's bytes, or their beginning.
        complete: `data` is the whole file. Otherwise its last character may be cut, and is dropped then.
    """
    encoding = encoding_of(data)
    if encoding != "utf-8":
        text = decoded(data, complete)
        return Decoded(text, encoding, "\ufffd" not in text)
    try:
        return Decoded(data.decode(), encoding)
    except UnicodeDecodeError as error:
        if complete or error.start < len(data) - 4:
            return Decoded(data.decode("latin-1"), "latin-1")
        return Decoded(decoded(data, complete), encoding)
