"""The folders of a repository, as they follow from the paths of its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Folder:
    """What lies in a folder: names, sorted. Folders without any file below them are not among them."""

    path: str
    folders: tuple[str, ...]
    files: tuple[str, ...]


def tree(files: Iterable[str]) -> dict[str, Folder]:
    """Every folder above the files, by its path. The root ("") is always there."""
    folders: defaultdict[str, list[str]] = defaultdict(list)
    names: defaultdict[str, list[str]] = defaultdict(list)
    known = {""}
    for file in files:
        folder, _, name = file.rpartition("/")
        names[folder].append(name)
        while folder not in known:
            known.add(folder)
            outer, _, inner = folder.rpartition("/")
            folders[outer].append(inner)
            folder = outer
    return {path: Folder(path, tuple(sorted(folders[path])), tuple(sorted(names[path]))) for path in sorted(known)}
