"""Raw files that a user has downloaded: search for files, their splits, and their records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.core.types import UserError
from reflectrl.wings.text.samples import rows

SPLITS = ("train", "validation", "test")
_WORDS = {"train": "train", "training": "train", "test": "test"}
_WORDS |= dict.fromkeys(("valid", "validation", "val", "dev"), "validation")


class Source(NamedTuple):
    """A raw file.

    Attributes:
        name: path from the given folder on, without endings.
        split: split in the name; "" if none.
    """

    path: Path
    name: str
    split: str

    @property
    def fixed(self) -> str:
        """Split of the records; "" if held-out sets may be drawn from them."""
        return "" if self.split == "train" else self.split

    def ends(self, ending: str) -> bool:
        """Return whether the name has an ending, with or without .gz after it."""
        return self.path.name.removesuffix(".gz").endswith(ending)


def find(paths: Sequence[Path], endings: Sequence[str]) -> list[Source]:
    """Find files with these endings, with or without .gz after them. Folders are searched with all their subfolders.

    A file that is given by itself counts as training data if its name contains no split.

    Raises:
        UserError: a path does not exist, or there is no such file.
    """
    sources = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.name.removesuffix(".gz").endswith(tuple(endings)):
                relative = Path(path.resolve().name, *file.relative_to(path).parts)
                name = relative.with_name(relative.name.removesuffix(".gz")).with_suffix("").as_posix()
                sources.append(Source(file, name, split_of(name) or ("train" if file == path else "")))
    if not sources:
        raise UserError(f"{', '.join(map(str, paths))}: no {' or '.join(endings)} file, gzipped or not")
    return sources


def split_of(name: str) -> str:
    """Return the split in a file's name, or else in the name of the nearest folder; "" if none."""
    for part in reversed(name.split("/")):
        splits = [_WORDS[word] for word in re.split("[^a-z]+", part.lower()) if word in _WORDS]
        if splits:
            return splits[-1]
    return ""


def records(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield (place, record) of a file of lines, or of a file that is a JSON list. `rows.parsed` reads a record.

    Raises:
        UserError: the file cannot be read, or a JSON list is broken, so that its rest is unreadable.
    """
    for _, location, record in rows.records(source.path, lists=not source.ends(".tsv")):
        yield location, record
