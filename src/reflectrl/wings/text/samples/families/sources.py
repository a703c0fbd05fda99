"""The raw files that a user has downloaded: which there are, to which split they belong, and the records in them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from reflectrl.types import UserError
from reflectrl.wings.text.samples.rows import BadRowError, opened, parse

SPLITS = ("train", "validation", "test")
_WORDS = {"train": "train", "training": "train", "test": "test"}
_WORDS |= dict.fromkeys(("valid", "validation", "val", "dev"), "validation")

CHUNK = 1 << 20
LARGEST = 1 << 26
"""Characters of one element of a JSON list, at most."""


class Source(NamedTuple):
    """A file, its name without endings from the given folder on, and its split as that name tells it; "" if not."""

    path: Path
    name: str
    split: str

    @property
    def fixed(self) -> str:
        """The split of its records; "" where held-out sets may be taken from them."""
        return "" if self.split == "train" else self.split

    def ends(self, ending: str) -> bool:
        """Whether its name has that ending, be it packed or not."""
        return self.path.name.removesuffix(".gz").endswith(ending)


def find(paths: Sequence[Path], endings: Sequence[str]) -> list[Source]:
    """The files with these endings, perhaps behind them .gz, in folders and their folders; files that are named count.

    Raises:
        UserError: a path does not exist, or there is no such file.
    """
    found = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.name.removesuffix(".gz").endswith(tuple(endings)):
                relative = Path(path.resolve().name, *file.relative_to(path).parts)
                name = relative.with_name(relative.name.removesuffix(".gz")).with_suffix("").as_posix()
                found.append(Source(file, name, split_of(name) or ("train" if file == path else "")))
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: no {' or '.join(endings)} file, packed by gzip or not")
    return found


def split_of(name: str) -> str:
    """The split that a file's name tells, or else that of the nearest folder's; "" if none does."""
    for part in reversed(name.split("/")):
        told = [_WORDS[word] for word in re.split("[^a-z]+", part.lower()) if word in _WORDS]
        if told:
            return told[-1]
    return ""


def records(source: Source) -> Iterator[tuple[str, Any]]:
    """(place, line or value) of a file of JSON lines, or of one that is a JSON list; `parsed` reads them.

    Raises:
        UserError: the file cannot be read, or a list is broken: what follows then cannot be read either.
    """
    with opened(source.path) as file:
        rows = (row for row in enumerate(file, start=1) if row[1].strip())
        path = str(source.path)
        start, first = next(rows, (1, b""))
        first = first.removeprefix(b"\xef\xbb\xbf")
        if first.lstrip().startswith(b"[") and not source.ends(".tsv"):
            file.seek(0)
            for k, (number, value) in enumerate(_elements(source.path, file), start=1):
                yield f"{path}:{number}, element {k}", value
        elif first:
            for number, line in chain([(start, first)], rows):
                yield f"{path}:{number}", line


def parsed(record: Any) -> dict[str, Any]:
    """The object that a record is; BadRowError if it is none."""
    if isinstance(record, bytes):
        return parse(record)
    if not isinstance(record, dict):
        raise BadRowError("not a JSON object", f"{record!r:.60}")
    return record


def _elements(path: Path, file: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON list with the lines on which they begin, of which few are held at a time."""
    stream = io.TextIOWrapper(file, "utf-8-sig")
    decoder, gap = json.JSONDecoder(), re.compile(r"[\s,]*")
    try:
        text = ""
        while "[" not in text:  # records() has seen one
            text += stream.read(CHUNK)
        at = text.index("[") + 1
        line = 1 + text.count("\n", 0, at)
        while True:
            found = gap.match(text, at)
            start = found.end() if found else at
            line += text.count("\n", at, start)
            if text.startswith("]", start):
                return
            try:
                value, at = decoder.raw_decode(text, start)
            except json.JSONDecodeError as error:
                more = stream.read(len(text) + CHUNK) if len(text) < LARGEST else ""
                if not more:
                    raise UserError(f"{path}:{line}: broken JSON begins here: {error.msg}") from error
                text, at = text[start:] + more, 0
                continue
            yield line, value
            line += text.count("\n", start, at)
    except (UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON: {error}") from error
    finally:
        stream.detach()
