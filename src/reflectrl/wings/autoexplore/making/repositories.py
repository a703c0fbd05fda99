"""Repositories of a library: unpacked packages, and folders of the user's own that stay where they are."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import NamedTuple

from reflectrl.git import head_of
from reflectrl.types import UserError
from reflectrl.wings.autoexplore.library import REPOS, Library, RepoEntry
from reflectrl.wings.autoexplore.making.archives import unpack
from reflectrl.wings.autoexplore.making.licences import licence_of
from reflectrl.wings.autoexplore.questions import write_rows
from reflectrl.wings.autoexplore.repository import Repository


class Pin(NamedTuple):
    """A package, and which release of it.

    Attributes:
        package: its name on a package index.
        version: "" is the newest.
        file: name of its source distribution (or wheel, where that is far smaller); "" is whatever there is.
        sha256: of that file; "" is what the index says.
        split: of the library.
        repo: owner/name of its repository, where imported questions name it.
    """

    package: str
    version: str = ""
    file: str = ""
    sha256: str = ""
    split: str = "train"
    repo: str = ""


@cache
def pins() -> tuple[Pin, ...]:
    """The whole table, in its order."""
    table = tomllib.loads(
        files("reflectrl.wings.autoexplore.making").joinpath("packages.toml").read_text(encoding="utf-8")
    )
    return tuple(
        Pin(row.get("package", key), row["version"], row["file"], row["sha256"], split, key if "/" in key else "")
        for split, rows in table.items()
        for key, row in rows.items()
    )


def pin_of(repo: str) -> Pin:
    """The package of a repository (owner/name): from the table, or else the newest release of its own name."""
    known = {pin.repo: pin for pin in pins() if pin.repo}
    return known.get(repo) or Pin(repo.rpartition("/")[2], split="imported", repo=repo)


FILES = (5, 20_000)
"""Files to explore that a repository has at least, and at most."""


def entries(store: Path) -> dict[str, RepoEntry]:
    """The repositories that a library holds, by name; none where there is no library."""
    return dict(Library(store).repos) if (store / REPOS).exists() else {}


def write_entries(store: Path, found: Iterable[RepoEntry]) -> None:
    """Write the list of repositories, sorted by name; UserError if it cannot be written."""
    write_rows(store / REPOS, (asdict(entry) for entry in sorted(found, key=lambda entry: entry.name)))


def unpacked(archive: Path, pin: Pin, origin: str, store: Path) -> RepoEntry:
    """Unpack a package into the library, in the place of an older version.

    Args:
        archive: its source distribution or wheel.
        pin: what it is; its version is known by now.
        origin: where it came from.
        store: the library.

    Raises:
        UserError: the archive is damaged, or it has too few files.
    """
    folder = store / "repos" / pin.package
    shutil.rmtree(folder, ignore_errors=True)
    licence = licence_of(folder, unpack(archive, folder))
    try:
        require_fit(Repository.open(folder))
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return RepoEntry(pin.package, pin.version, origin, licence, pin.split)


def referenced(path: Path, split: str, taken: Iterable[str], name: str = "") -> RepoEntry:
    """A folder of the user's own as a repository of the library; nothing is copied.

    Args:
        path: the folder.
        split: which it is for.
        taken: names that other repositories have; a number is put behind a name that is taken.
        name: its name in the library; the folder's if not given.

    Raises:
        UserError: it cannot be opened, or has too few files or too many.
    """
    repository = Repository.open(path)
    require_fit(repository)
    return RepoEntry(
        _free_name(name or repository.root.name, taken),
        _version(repository.root),
        str(repository.root),
        licence_of(repository.root),
        split,
        str(repository.root),
    )


def _free_name(name: str, taken: Iterable[str]) -> str:
    """A name that a file can have and that is not taken: "tool", "tool-2"."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).lstrip(".")
    name, names = name or "repository", set(taken)
    free = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(one for one in free if one not in names)


def require_fit(repository: Repository) -> None:
    """Refuse a repository with too few or too many files."""
    least, most = FILES
    if not least <= len(repository) <= most:
        raise UserError(f"{repository.root} has {len(repository)} files to explore; {least} to {most:,} are expected")


def _version(root: Path) -> str:
    """Return the commit that is checked out; "" where there is none."""
    return (head_of(root) or "")[:12]
