"""`data alfworld`: get the games, or list what the store holds."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import urlsplit

import tyro

from reflectrl.core.config.folders import data_folder
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, bar, refuse_unknown

if TYPE_CHECKING:
    from reflectrl.wings.alfworld.importing import Imported

ALFWORLD_RELEASES = "https://github.com/alfworld/alfworld/releases/download/"
ALFWORLD_URLS = tuple(
    ALFWORLD_RELEASES + file
    for file in ("0.2.2/json_2.1.1_json.zip", "0.2.2/json_2.1.1_pddl.zip", "0.4.0/json_2.1.2_tw-pddl.zip")
)
"""Archives that `alfworld-download` fetches for the text games: tasks, households, and the list of solvable games."""

DOWNLOADS = "downloads"
"""Folder in the store for archives, until they are imported."""

SHOWN = 10
"""Largest number of bad games that are named. The others are counted."""


@dataclass(frozen=True)
class ALFWorldData(Data):
    """Get ALFWorld's games: download them, import official files, or generate some. Without options, list the games."""

    download: bool = False
    """Download and import the official files."""
    from_: Annotated[
        tuple[tuple[Path, ...], ...], tyro.conf.arg(name="from", metavar="DIR ..."), tyro.conf.UseAppendAction
    ] = ()
    """Import official files: folders, or .zip and .tar.* archives."""
    generate: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Generate N training games, and N/10 for each other set. Results on them are not ALFWorld scores."""
    store: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder for the games. Default: $REFLECTRL_DATA/alfworld, or ~/.cache/reflectrl/alfworld."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of generated games."""
    replace: bool = False
    """Remove the games that are in the store."""
    url: Annotated[tuple[str, ...], tyro.conf.arg(metavar="URL"), tyro.conf.UseAppendAction] = ()
    """Download from this address instead (a mirror); may be given several times."""

    ways: ClassVar[str] = "--download, --from DIR, --generate N"

    def __call__(self, settings: Sequence[str]) -> None:
        """Get the games, then print what the store holds."""
        self._check(settings)
        store = data_folder("alfworld", self.store)
        try:
            if self.download:
                _report(self._download(store))
            elif self.from_:
                _report(self._import([path for paths in self.from_ for path in paths], store))
            elif self.generate is not None:
                from reflectrl.wings.alfworld.importing import generate_games

                with bar("generate") as progress:
                    generate_games(self.generate, self.seed, store, progress, self.replace)
        except UserError:
            _clear(store)
            raise
        _show(store, self.store)

    def _check(self, settings: Sequence[str]) -> None:
        refuse_unknown(settings, type(self))
        source_count = self.download + bool(self.from_) + (self.generate is not None)
        if source_count > 1:
            raise UserError(f"data: only one of {self.ways} at a time")
        if () in self.from_:
            raise UserError("data: --from needs a folder or an archive")
        if self.generate is not None and self.generate < 1:
            raise UserError(f"data: --generate must be at least 1, not {self.generate}")
        if self.url and not self.download:
            raise UserError("data: --url needs --download")
        for url in self.url:
            _archive_name(url)
        if self.replace and not source_count:
            raise UserError(f"data: --replace needs one of {self.ways}")

    def _import(self, sources: Sequence[Path], store: Path) -> Imported:
        from reflectrl.wings.alfworld.importing import import_games

        with bar("import") as progress:
            return import_games(sources, store, progress, self.replace)

    def _download(self, store: Path) -> Imported:
        from reflectrl.wings.alfworld.library import require_fillable

        require_fillable(store, generated=False, replace=self.replace)
        folder = store / DOWNLOADS
        folder.mkdir(exist_ok=True)
        archives = [_fetched(url, folder) for url in self.url or ALFWORLD_URLS]
        imported = self._import(archives, store)
        for archive in archives:
            archive.unlink()
        _clear(store)
        return imported


def _clear(store: Path) -> None:
    """Remove the store's folders if they are empty."""
    for folder in (store / DOWNLOADS, store):
        with suppress(OSError):
            folder.rmdir()


def _archive_name(url: str) -> str:
    """Return a distinct file name for each address. Raise UserError if the address is not an archive's."""
    from reflectrl.wings.alfworld.sources import ARCHIVES

    try:
        address = urlsplit(url)
    except ValueError as error:
        raise UserError(f"{url} is not a valid address: {error}") from error
    if address.scheme not in ("http", "https") or not address.path.endswith(ARCHIVES):
        raise UserError(f"{url}: expected the http or https address of an archive ({', '.join(ARCHIVES)})")
    return re.sub(r"[^\w.-]", "_", address.netloc + address.path)


def _fetched(url: str, folder: Path) -> Path:
    """Download an archive and return its path. A download that turns out not to be an archive is removed."""
    from reflectrl.tools.downloads.download import download
    from reflectrl.wings.alfworld.sources import open_sources

    archive = folder / _archive_name(url)
    print(f"downloading {url} to {archive}", flush=True)
    with bar(url.rpartition("/")[2]) as progress:
        download(url, archive, lambda done, total: progress(done >> 20, total >> 20, "MiB"))
    try:
        with open_sources([archive]):
            return archive
    except UserError as error:
        archive.unlink()
        raise UserError(f"{url} is not an archive of games: {error}") from error


def _report(imported: Imported) -> None:
    for reason, count in imported.skipped.most_common():
        print(f"left out: {count} games, {reason}")
    for name, reason in imported.bad[:SHOWN]:
        print(f"bad game: {name}: {reason}", file=sys.stderr)
    if len(imported.bad) > SHOWN:
        print(f"... and {len(imported.bad) - SHOWN} more bad games", file=sys.stderr)


def _show(store: Path, named: str) -> None:
    """Print a table: games per task type and split."""
    from reflectrl.wings.alfworld.game import TYPES
    from reflectrl.wings.alfworld.library import SETS, open_shelf, splits_in

    shelves = {split: open_shelf(named, split) for split in splits_in(store) or SETS[:1]}
    counts = {split: Counter(entry.type for entry in shelf.entries) for split, shelf in shelves.items()}
    generated = any(shelf.generated for shelf in shelves.values())
    print(f"{store}{' (generated games: results on them are not ALFWorld scores)' if generated else ''}")
    print(" " * 32 + "".join(f"{split:>14}" for split in shelves))
    for kind in TYPES:
        print(f"  {kind:30}" + "".join(f"{counts[split][kind]:14}" for split in shelves))
    print(f"  {'all':30}" + "".join(f"{counts[split].total():14}" for split in shelves))
