"""The raw files that a user has downloaded: which there are, to which split they belong, and the records in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.types import UserError
from reflectrl.wings.text.samples import rows

SPLITS = ("train", "validation", "test")
_WORDS = {"train": "train", "training": "train", "test": "test"}
_WORDS |= dict.fromkeys(("valid", "validation", "val", "dev"), "validation")


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
    for _, place, record in rows.records(source.path, lists=not source.ends(".tsv")):
        yield place, record
