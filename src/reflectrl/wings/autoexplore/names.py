"""Paths inside a repository, and their text form for models and users.

A path is a `str` relative to the repository's root, in POSIX form: "" is the root, "src/app.py" a file. Bytes of a name
that are not UTF-8 become surrogates, as everywhere in Python (PEP 383).
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_PLAIN = re.compile(r"[A-Za-z0-9_.+=@#%^~()\[\]{}/-]*")
"""Characters that need no quotes. Letters and digits of other scripts need none either."""
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONG = {short[1]: character for character, short in _SHORT.items()}
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u\{([0-9a-f]{1,6})\}|(.))", re.DOTALL)


def shown(path: str) -> str:
    r"""Return the text form of a path: unchanged if it is plain, else quoted and escaped.

    The form is unique for each path. It never holds a line break, a control character, a bidirectional mark, a
    combining mark, or half of a surrogate pair: `; touch x` becomes `"; touch x"`, and a line break in a name `\n`.
    """
    if path and (_PLAIN.fullmatch(path) or all(map(_is_plain, path))):
        return path
    return f'"{"".join(map(_escaped, path))}"'


def _is_plain(character: str) -> bool:
    return _PLAIN.fullmatch(character) is not None or (ord(character) > 0x7F and character.isalnum())


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable() and not unicodedata.category(character).startswith("M"):
        return character
    return f"\\u{{{code:x}}}"


def unescaped(text: str) -> str | None:
    """Return the path whose form by `shown` is `text`; None if it is no quoted form."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':  # noqa: PLR2004
        return None
    try:
        return _ESCAPE.sub(_character, text[1:-1])
    except (ValueError, OverflowError):
        return None


def _character(escape: re.Match[str]) -> str:
    byte, code, short = escape.groups()
    if byte is not None:
        return chr(0xDC00 + int(byte, 16))
    return chr(int(code, 16)) if code is not None else _LONG.get(short, short)


def joined(folder: str, name: str) -> str:
    """Return the path of an entry of a folder."""
    return f"{folder}/{name}" if folder else name


def parent(path: str) -> str:
    """Return the folder that holds a path; the root for the root itself."""
    return path.rpartition("/")[0]


def depth(path: str) -> int:
    """Return the number of folders above a path; 0 for an entry of the root."""
    return path.count("/")


@dataclass(frozen=True, slots=True)
class Folder:
    """Contents of a folder: sorted names. Folders without any file below them are left out."""

    path: str
    folders: tuple[str, ...]
    files: tuple[str, ...]


def tree(files: Iterable[str]) -> dict[str, Folder]:
    """Return path → contents of every folder above the files, always including the root ("")."""
    folders: defaultdict[str, list[str]] = defaultdict(list)
    names: defaultdict[str, list[str]] = defaultdict(list)
    paths = {""}
    for file in files:
        folder, _, name = file.rpartition("/")
        names[folder].append(name)
        while folder not in paths:
            paths.add(folder)
            outer, _, inner = folder.rpartition("/")
            folders[outer].append(inner)
            folder = outer
    return {path: Folder(path, tuple(sorted(folders[path])), tuple(sorted(names[path]))) for path in sorted(paths)}
