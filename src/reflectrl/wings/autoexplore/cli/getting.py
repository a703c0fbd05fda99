"""Sources of repositories for `data autoexplore`: a package index, or folders that the user names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import bar

if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.library import RepoEntry
    from reflectrl.wings.autoexplore.making.dropped import Dropped
    from reflectrl.wings.autoexplore.making.repositories import Pin

DOWNLOADS = "downloads"
"""Folder in the library that holds archives until they are unpacked."""


def get_table(index: str, store: Path) -> list[Dropped]:
    """Download the packages of the built-in table that belong to training, validation or test.

    Returns:
        The packages that were left out.
    """
    from reflectrl.wings.autoexplore.library import IMPORTED
    from reflectrl.wings.autoexplore.making.repositories import pins

    _, dropped = _get([pin for pin in pins() if pin.split != IMPORTED], index, store)
    return dropped


def get_named(named: Sequence[str], index: str, store: Path) -> tuple[dict[str, RepoEntry], list[Dropped]]:
    """Download the packages of repositories (owner/name).

    Returns:
        owner/name → repository, and the packages that were left out.
    """
    from reflectrl.wings.autoexplore.making.repositories import pin_of

    pins = {name: pin_of(name) for name in named}
    entries, dropped = _get(list(dict.fromkeys(pins.values())), index, store)
    return {name: entries[pin.package] for name, pin in pins.items() if pin.package in entries}, dropped


def _get(wanted: Sequence[Pin], index: str, store: Path) -> tuple[dict[str, RepoEntry], list[Dropped]]:
    """Download and unpack packages that the library lacks.

    Returns:
        Package → repository, and the packages that the index lacks or that have too few or too many files.
    """
    from reflectrl.wings.autoexplore.cli.packages import NoSuchPackageError, index_url
    from reflectrl.wings.autoexplore.making.dropped import Dropped
    from reflectrl.wings.autoexplore.making.make import add_repositories
    from reflectrl.wings.autoexplore.making.repositories import UnfitRepositoryError, entries

    index, existing = index_url(index), entries(store)
    missing: list[Pin] = []
    dropped: list[Dropped] = []
    for pin in wanted:
        entry = existing.get(pin.package)
        fits = entry is not None and pin.version in ("", entry.version)
        if not (fits and (store / "repos" / pin.package).exists()):
            missing.append(pin)
    if missing:
        print(f"getting {len(missing)} packages from {index}", flush=True)
    with bar("packages") as progress:
        for done, pin in enumerate(missing, 1):
            try:
                add_repositories(store, [_fetched(pin, index, store)])
            except (NoSuchPackageError, UnfitRepositoryError) as error:
                dropped.append(Dropped(pin.package, "repos", str(error)))
            progress(done, len(missing), pin.package)
    _print_left_out(dropped)
    existing = entries(store)
    return {pin.package: existing[pin.package] for pin in wanted if pin.package in existing}, dropped


def _fetched(pin: Pin, index: str, store: Path) -> RepoEntry:
    from reflectrl.wings.autoexplore.cli.packages import fetch
    from reflectrl.wings.autoexplore.making.imported import plain_name
    from reflectrl.wings.autoexplore.making.repositories import UnfitRepositoryError, unpacked

    folder = store / DOWNLOADS
    folder.mkdir(parents=True, exist_ok=True)
    archive, completed = fetch(pin, index, folder)
    origin = f"pkg:pypi/{plain_name(completed.package)}@{completed.version}?file_name={archive.name}"  # a package URL
    try:
        entry = unpacked(archive, completed, origin, store)
    except UnfitRepositoryError:
        archive.unlink()  # otherwise an archive is kept, so that it need not be downloaded again
        raise
    archive.unlink()
    return entry


def reference(folders: Sequence[Path], store: Path, seed: int, by_task: bool) -> list[Dropped]:
    """Add the user's folders to a library.

    Repositories are divided among the splits. With `by_task`, all belong to training: the questions are divided.

    Returns:
        The folders that were left out: they cannot be read, or have too few or too many files.

    Raises:
        UserError: a path is not a folder, which is probably a slip; no folder can be explored; or too few are left.
    """
    from reflectrl.wings.autoexplore.making.dropped import Dropped
    from reflectrl.wings.autoexplore.making.make import add_repositories, split_of_repositories
    from reflectrl.wings.autoexplore.making.repositories import entries, referenced

    existing = entries(store)
    # A folder that is in the library already keeps its name.
    names_by_path = {entry.path: entry.name for entry in existing.values() if entry.path}
    taken = dict.fromkeys(name for name in existing if name not in names_by_path.values())
    added: list[RepoEntry] = []
    dropped: list[Dropped] = []
    for folder in dict.fromkeys(folder.expanduser().resolve() for folder in folders):
        try:
            added.append(referenced(folder, "train", taken, names_by_path.get(str(folder), "")))
        except UserError as error:
            if not os.path.isdir(folder):  # noqa: PTH112  (`Path.is_dir` may raise)
                raise
            dropped.append(Dropped(str(folder), "repos", str(error)))
            continue
        taken[added[-1].name] = None
    if not added:
        raise UserError(dropped[0].reason)
    _print_left_out(dropped)  # before the split, which may be refused because too few are left
    splits = {} if by_task else split_of_repositories([entry.name for entry in added], seed)
    add_repositories(store, [replace(entry, split=splits.get(entry.name, "train")) for entry in added])
    return dropped


def beside(named: Sequence[str], folder: Path, store: Path) -> tuple[dict[str, RepoEntry], list[Dropped]]:
    """Return owner/name → repository for each named repository that has a subfolder of `folder`, and the repositories
    that were left out because they cannot be read, or have too few or too many files.
    """
    from reflectrl.wings.autoexplore.library import IMPORTED
    from reflectrl.wings.autoexplore.making.dropped import Dropped
    from reflectrl.wings.autoexplore.making.imported import find_repo
    from reflectrl.wings.autoexplore.making.repositories import entries, referenced

    existing = entries(store)
    entries_by_path = {entry.path: entry for entry in existing.values() if entry.path}
    repos: dict[str, RepoEntry] = {}
    dropped: list[Dropped] = []
    for name in named:
        root = find_repo(name, folder.expanduser())
        if root is None:
            continue
        taken = {*existing, *(entry.name for entry in repos.values())}
        try:
            repos[name] = entries_by_path.get(str(root.resolve())) or referenced(root, IMPORTED, taken)
        except UserError as error:
            dropped.append(Dropped(name, "repos", str(error)))
    _print_left_out(dropped)
    return repos, dropped


def _print_left_out(dropped: Sequence[Dropped]) -> None:
    for entry in dropped:
        print(f"left out: {entry.reason}")
