"""Decode the bytes of a file: by its byte order mark, as UTF-8, or in the encoding that it declares.

    decode("# -*- coding: gbk -*-\\n# 退款\\n".encode("gbk"))    # Decoded(text="# -*- coding: ...", encoding="gb18030")

Everything that reads a repository's files decodes them here, so that all see the same text.
"""

from __future__ import annotations

import codecs
import encodings.utf_16  # noqa: F401  otherwise Python looks for it while a repository is read
import re
from typing import NamedTuple

HEAD = 1024
"""Number of bytes in which a declaration is looked for, as browsers do."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DECLARED = re.compile(
    # In the first two lines, as Python (PEP 263), Emacs and Vim do.
    rb"\A(?:[^\n]*\n)?[ \t\f]*[#;%/*\"'<-][^\n]*?coding[:=][ \t]*([\w.-]+)"
    rb"|\A\s*<\?xml[^>]*?\bencoding\s*=\s*[\"']([\w.-]+)"
    rb"|\A@charset[ ]\"([\w.-]+)\""
    rb"|<meta\b[^<>]*?\bcharset\s*=\s*[\"']?([\w.-]+)",
    re.IGNORECASE,
)
_SUPERSETS = {
    "gb18030": "gb18030 gbk gb2312 cp936 euc-cn euccn x-gbk",
    "cp950": "big5 big5-tw cp950",
    "big5hkscs": "big5-hkscs big5hkscs",
    "cp932": "shift-jis shiftjis sjis x-sjis ms-kanji cp932 windows-31j",
    "euc_jp": "euc-jp eucjp ujis",
    "cp949": "euc-kr euckr cp949 uhc ks-c-5601-1987",
    "iso2022_jp_2": "iso-2022-jp iso2022-jp iso-2022-jp-1 iso-2022-jp-2",
    "iso2022_kr": "iso-2022-kr iso2022-kr",
    "koi8_r": "koi8-r",
    "koi8_u": "koi8-u",
    "cp866": "cp866 ibm866",
    "cp874": "tis-620 windows-874 cp874 iso-8859-11",
    "iso8859_1": "latin-1 latin1 iso-8859-1 iso8859-1",
    **{f"cp125{n}": f"windows-125{n} cp125{n}" for n in range(9)},
    **{f"iso8859_{n}": f"iso-8859-{n} iso8859-{n}" for n in (*range(2, 11), *range(13, 17))},
}
"""Encoding that is used → names in declarations. No other codec is ever looked up by a file's word."""
_CODECS = {name: codec for codec, names in _SUPERSETS.items() for name in names.split()}
_IN_ASCII = ("iso2022_jp_2", "iso2022_kr")
"""Encodings whose bytes are all ASCII."""
_EAST_ASIAN = ("gb18030", "cp950", "big5hkscs", "cp932", "euc_jp", "cp949")
_LONG = re.compile(rb"[\xe0-\xff]")
"""Bytes that begin characters of three bytes or more in UTF-8."""


class Decoded(NamedTuple):
    """Text of a file.

    Attributes:
        text: text, including a byte order mark of UTF-8.
        encoding: name of a codec of Python. "latin-1" stands for bytes in no encoding that is known here; a declared
            Latin-1 is "iso8859_1".
        is_exact: False if some bytes were replaced by U+FFFD.
    """

    text: str
    encoding: str
    is_exact: bool = True


def decode(data: bytes, complete: bool = True, fallback: str = "latin-1") -> Decoded:
    """Decode the bytes of a file.

    Args:
        data: bytes of the file, or their beginning.
        complete: `data` is the whole file. Otherwise, a cut last character is dropped.
        fallback: encoding for bytes that are neither UTF-8 nor in a declared encoding. What it does not know becomes
            U+FFFD.
    """
    # The mark of UTF-32, whose files are taken for binary here as by git, begins with that of UTF-16.
    if data.startswith(_UTF_16) and not data.startswith(codecs.BOM_UTF32_LE):
        text = _strictly(data, "utf-16", complete)
        return Decoded(text, "utf-16") if text is not None else _replacing(data, "utf-16", complete)
    text = _strictly(data, "utf-8", complete)
    is_marked = data.startswith(codecs.BOM_UTF8)
    if text is not None and (is_marked or (text.isascii() and b"\x1b" not in data)):
        return Decoded(text, "utf-8")
    declared = None if is_marked else declared_encoding(data)
    # Few characters of two bytes in an East Asian encoding may be valid UTF-8 by chance, but no longer text is.
    by_chance = declared in _IN_ASCII or (declared in _EAST_ASIAN and _LONG.search(data) is None)
    if text is not None and not by_chance:
        return Decoded(text, "utf-8")
    if declared is not None and (in_declared := _strictly(data, declared, complete)) is not None:
        return Decoded(in_declared, declared)
    if text is not None:
        return Decoded(text, "utf-8")
    return _replacing(data, fallback, complete)


def declared_encoding(data: bytes) -> str | None:
    """Return the codec for the encoding that a file declares in its first lines; None for none, or an unknown one."""
    match = _DECLARED.search(data[:HEAD])
    if match is None:
        return None
    name = next(filter(None, match.groups())).decode("ascii", "replace").lower().replace("_", "-")
    return _CODECS.get(re.sub(r"-(?:unix|dos|mac)$", "", name))  # Emacs adds the kind of line ends


def _strictly(data: bytes, encoding: str, complete: bool) -> str | None:
    try:
        if complete:
            return data.decode(encoding)
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeError:
        return None


def _replacing(data: bytes, encoding: str, complete: bool) -> Decoded:
    text = codecs.getincrementaldecoder(encoding)("replace").decode(data, complete)
    return Decoded(text, encoding, encoding == "latin-1")
