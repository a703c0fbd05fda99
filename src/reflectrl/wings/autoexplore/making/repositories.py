"""Repositories of a library: unpacked packages, and the user's own folders, which are not copied."""

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

from reflectrl.core.git import head_of
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.library import REPOS, Library, RepoEntry
from reflectrl.wings.autoexplore.making.archives import unpack
from reflectrl.wings.autoexplore.making.licences import licence_of
from reflectrl.wings.autoexplore.questions import write_rows
from reflectrl.wings.autoexplore.repository import Repository


class Pin(NamedTuple):
    """Pinned release of a package.

    Attributes:
        package: name on a package index.
        version: version; "" for the newest.
        file: name of the source distribution (or of the wheel, if that is far smaller); "" to choose from the index.
        sha256: hash of the file; "" to trust the index.
        split: split of the library.
        repo: owner/name of the repository, if imported questions use it; otherwise "".
    """

    package: str
    version: str = ""
    file: str = ""
    sha256: str = ""
    split: str = "train"
    repo: str = ""


@cache
def pins() -> tuple[Pin, ...]:
    """Return the built-in table of packages, in its order."""
    table = tomllib.loads(
        files("reflectrl.wings.autoexplore.making").joinpath("packages.toml").read_text(encoding="utf-8")
    )
    return tuple(
        Pin(row.get("package", key), row["version"], row["file"], row["sha256"], split, key if "/" in key else "")
        for split, rows in table.items()
        for key, row in rows.items()
    )


def pin_of(repo: str) -> Pin:
    """Return the package of a repository (owner/name): from the table, else the newest release of the same name."""
    pin_by_repo = {pin.repo: pin for pin in pins() if pin.repo}
    return pin_by_repo.get(repo) or Pin(repo.rpartition("/")[2], split="imported", repo=repo)


def package_sha256(entry: RepoEntry) -> str:
    """Return the SHA-256 of the file from which a repository was unpacked; "" if the table lacks this version."""
    hashes = (pin.sha256 for pin in pins() if (pin.package, pin.version) == (entry.name, entry.version))
    return next(hashes, "") if entry.origin.startswith("pkg:") else ""


class UnfitRepositoryError(UserError):
    """A repository has too few or too many files to explore."""


FILES = (5, 20_000)
"""Smallest and largest number of files to explore in a repository."""


def entries(store: Path) -> dict[str, RepoEntry]:
    """Return name → entry of the repositories in a library; {} if there is no library."""
    return dict(Library(store).repos) if (store / REPOS).exists() else {}


def write_entries(store: Path, repositories: Iterable[RepoEntry]) -> None:
    """Write the list of repositories, sorted by name; raise UserError if it cannot be written."""
    write_rows(store / REPOS, (asdict(entry) for entry in sorted(repositories, key=lambda entry: entry.name)))


def unpacked(archive: Path, pin: Pin, origin: str, store: Path) -> RepoEntry:
    """Unpack a package into the library. An older version is replaced.

    Args:
        archive: source distribution or wheel.
        pin: pin of the package, with its version.
        origin: source of the package: an address.
        store: folder of the library.

    Raises:
        UnfitRepositoryError: the archive has too few or too many files.
        UserError: the archive is damaged.
    """
    folder = store / "repos" / pin.package
    shutil.rmtree(folder, ignore_errors=True)
    licence = licence_of(folder, unpack(archive, folder))
    try:
        require_fit(Repository.open(folder), pin.package)
    except UserError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, UnfitRepositoryError):
            raise
        raise UnfitRepositoryError(f"{pin.package} holds no file to explore") from error
    return RepoEntry(pin.package, pin.version, origin, licence, pin.split)


def referenced(path: Path, split: str, taken: Iterable[str], name: str = "") -> RepoEntry:
    """Make an entry for a folder of the user. Nothing is copied.

    Args:
        path: folder of the repository.
        split: split of the library.
        taken: names of other repositories. If the name is taken, a number is appended.
        name: name in the library; "" for the name of the folder.

    Raises:
        UserError: the folder cannot be opened, or has too few or too many files.
    """
    repository = Repository.open(path)
    require_fit(repository, str(repository.root))
    return RepoEntry(
        _free_name(name or repository.root.name, taken),
        _version(repository.root),
        str(repository.root),
        licence_of(repository.root),
        split,
        str(repository.root),
    )


def _free_name(name: str, taken: Iterable[str]) -> str:
    """Return a valid file name that is not taken: "tool", "tool-2"."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).lstrip(".")
    name, names = name or "repository", set(taken)
    candidates = (name if suffix == 1 else f"{name}-{suffix}" for suffix in count(1))
    return next(candidate for candidate in candidates if candidate not in names)


def require_fit(repository: Repository, called: str) -> None:
    """Raise UnfitRepositoryError if a repository has too few or too many files."""
    least, most = FILES
    if not least <= len(repository) <= most:
        raise UnfitRepositoryError(f"{called} has {len(repository)} files to explore; {least} to {most:,} are expected")


def _version(root: Path) -> str:
    """Return the abbreviated commit that is checked out; "" if there is none."""
    return (head_of(root) or "")[:12]
