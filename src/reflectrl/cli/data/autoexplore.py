"""`data autoexplore`: making a library of repositories and questions, or saying what is there."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from reflectrl.cli.data.base import Data, bar, refuse_unknown
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.envs.autoexplore.library import RepoEntry
    from reflectrl.envs.autoexplore.making.make import Writer
    from reflectrl.envs.autoexplore.making.pins import Pin

DOWNLOADS = "downloads"
"""Folder in the library for archives, until they are unpacked."""


@dataclass(frozen=True)
class AutoExploreData(Data):
    """Make a library of repositories and questions about them, for AutoExplore. Else say what is there."""

    download: bool = False
    """Download the packages of the built-in table from a package index (with --import: those that are asked about)."""
    from_: Annotated[
        tuple[tuple[Path, ...], ...], tyro.conf.arg(name="from", metavar="DIR ..."), tyro.conf.UseAppendAction
    ] = ()
    """Take these folders (git clones, say) as repositories. They are not copied, and stay where they are."""
    import_: Annotated[Path | None, tyro.conf.arg(name="import", metavar="FILE")] = None
    """Add questions of others: JSON lines with repo (owner/name), question and gold (paths)."""
    repos: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the repositories of imported questions are: a folder with a folder for each."""
    stage: Annotated[Literal["repos", "questions", "all"], tyro.conf.arg(metavar="STAGE")] = "all"
    """repos: only get the repositories. questions: only write questions about those that are there."""
    writer: Annotated[Literal["rules", "endpoint"], tyro.conf.arg(metavar="WRITER")] = "rules"
    """Who writes questions: rules (no language model), or endpoint (a model, which is sent the files)."""
    endpoint: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """Of --writer endpoint: an OpenAI-compatible address, such as http://127.0.0.1:8000/v1."""
    model: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """Of --writer endpoint: the server's name for the model."""
    per_repo: Annotated[int, tyro.conf.arg(metavar="N")] = 300
    """At most so many questions about a repository."""
    commits: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    """Ask about so many commits of each git clone, at most; each needs a copy of its parent's files."""
    split_by: Annotated[Literal["repository", "task"], tyro.conf.arg(metavar="WHAT")] = "repository"
    """Divide repositories among training, validation and test; or questions, 7:1:2."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of everything that is drawn."""
    store: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Where the library is; $REFLECTRL_DATA/autoexplore or ~/.cache/reflectrl/autoexplore if not given."""
    replace: bool = False
    """Make a new library in the place of the one that is there."""
    index: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """Package index of --download; pip's, if not given."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Make what is asked for, then say what the library holds."""
        self._check(settings)
        from reflectrl.envs.autoexplore.library import library_path, open_library

        store = library_path(self.store)
        if self.stage == "questions":
            open_library(self.store)  # before anything is made
        if self._asked:
            made = store.with_name(f"{store.name}.making") if self.replace else store
            _require_writable(made)
            try:
                self._make(made)
            finally:
                _clear(made)
            if self.replace:
                _put_in_place(made, store)
        _show(self.store)

    @property
    def _asked(self) -> bool:
        return self.download or bool(self.from_) or self.import_ is not None or self.stage == "questions"

    def _check(self, settings: Sequence[str]) -> None:
        refuse_unknown(settings, type(self))
        if self.download and self.from_:
            raise UserError("data: only one of --download, --from DIR at a time")
        if () in self.from_:
            raise UserError("data: --from needs a folder")
        if self.import_ is not None and self.from_:
            raise UserError("data: --import takes its repositories from --repos DIR or --download, not from --from")
        if self.import_ is not None and not (self.download or self.repos):
            raise UserError("data: --import needs --repos DIR, or --download to get the repositories")
        if self.repos is not None and self.import_ is None:
            raise UserError("data: --repos needs --import FILE")
        if self.stage == "questions" and (self.download or self.from_ or self.import_ is not None):
            raise UserError("data: --stage questions asks about the repositories that are there; leave out the others")
        if self.replace and not (self.download or self.from_):
            raise UserError("data: --replace needs --download or --from DIR")
        if self.replace and self.import_ is not None:
            raise UserError("data: --import adds to a library; it cannot --replace one")
        if self.per_repo < 1 or self.commits < 0:
            raise UserError("data: --per-repo must be at least 1, and --commits at least 0")
        if (self.writer == "endpoint") != bool(self.endpoint and self.model):
            raise UserError("data: --writer endpoint needs --endpoint URL and --model NAME, and they need it")

    def _make(self, store: Path) -> None:
        if self.import_ is not None:
            self._import(self.import_, store)
            return
        if self.download:
            self._download(store)
        elif self.from_:
            self._reference([path for paths in self.from_ for path in paths], store)
        if self.stage in ("questions", "all"):
            self._write(store)

    # ---- repositories ------------------------------------------------------------------------------------------------

    def _download(self, store: Path) -> None:
        from reflectrl.envs.autoexplore.library import IMPORTED
        from reflectrl.envs.autoexplore.making.pins import pins

        self._get([pin for pin in pins() if pin.split != IMPORTED], store)

    def _get(self, wanted: Sequence[Pin], store: Path) -> dict[str, RepoEntry]:
        """Fetch and unpack packages, those apart that are there; returns package → repository."""
        from reflectrl.cli.data.packages import NoSuchPackageError, index_url
        from reflectrl.envs.autoexplore.making.make import add_repositories
        from reflectrl.envs.autoexplore.making.repositories import entries

        index, known = index_url(self.index), entries(store)
        missing = [pin for pin in wanted if not _is_there(pin, known, store)]
        if missing:
            print(f"getting {len(missing)} packages from {index}", flush=True)
        with bar("packages") as tick:
            for done, pin in enumerate(missing, 1):
                try:
                    add_repositories(store, [_fetched(pin, index, store)])
                except NoSuchPackageError as error:
                    print(f"left out: {error}")
                tick(done, len(missing), pin.package)
        known = entries(store)
        return {pin.package: known[pin.package] for pin in wanted if pin.package in known}

    def _reference(self, folders: Sequence[Path], store: Path) -> None:
        from reflectrl.envs.autoexplore.making.make import add_repositories, own_splits
        from reflectrl.envs.autoexplore.making.repositories import entries, referenced

        known = entries(store)
        there = {entry.path: entry.name for entry in known.values() if entry.path}
        taken = dict.fromkeys(name for name in known if name not in there.values())
        found: list[RepoEntry] = []
        for folder in dict.fromkeys(folder.expanduser().resolve() for folder in folders):
            found.append(referenced(folder, "train", taken, there.get(str(folder), "")))
            taken[found[-1].name] = None
        splits = own_splits([entry.name for entry in found], self.seed, self.split_by == "task")
        add_repositories(store, [changed(entry, split=splits[entry.name]) for entry in found])

    # ---- questions ---------------------------------------------------------------------------------------------------

    def _write(self, store: Path) -> None:
        from reflectrl.envs.autoexplore.making.make import make_questions

        with bar("questions") as tick:
            dropped = make_questions(store, self._writer(), self.seed, self.split_by == "task", self.commits, tick)
        _report("left out", dropped, "drafts")

    def _writer(self) -> Writer:
        if self.writer == "rules":
            from reflectrl.envs.autoexplore.making.writing import write_questions_about

            return partial(write_questions_about, seed=self.seed, per_repo=self.per_repo)
        from reflectrl.envs.autoexplore.making.endpoint import EndpointWriter
        from reflectrl.models.endpoint import Endpoint

        print(f"the files of the repositories are sent to {self.endpoint}", flush=True)
        return EndpointWriter(Endpoint(self.endpoint, self.model), self.per_repo, self.seed)

    def _import(self, path: Path, store: Path) -> None:
        from reflectrl.envs.autoexplore.making.imported import by_repo, read_imported, set_name
        from reflectrl.envs.autoexplore.making.make import import_set

        asked = read_imported(path)
        name = set_name(asked, path)
        named = list(by_repo(asked))
        found = self._downloaded(named, store) if self.download else self._beside(named, store)
        if self.stage == "repos":
            return
        left_out = import_set(store, name, asked, found)
        print(f"{name}: {len(asked) - left_out.total()} of {len(asked)} questions have a repository and a gold file")
        _report("left out", left_out, "questions")

    def _downloaded(self, named: Sequence[str], store: Path) -> dict[str, RepoEntry]:
        """owner/name → its package's repository."""
        from reflectrl.envs.autoexplore.making.pins import pin_of

        wanted = {name: pin_of(name) for name in named}
        found = self._get(list(dict.fromkeys(wanted.values())), store)
        return {name: found[pin.package] for name, pin in wanted.items() if pin.package in found}

    def _beside(self, named: Sequence[str], store: Path) -> dict[str, RepoEntry]:
        """owner/name → the folder of that name in --repos."""
        from reflectrl.envs.autoexplore.library import IMPORTED
        from reflectrl.envs.autoexplore.making.imported import find_repo
        from reflectrl.envs.autoexplore.making.repositories import entries, referenced

        assert self.repos is not None
        known = entries(store)
        there = {entry.path: entry for entry in known.values() if entry.path}
        found: dict[str, RepoEntry] = {}
        for name in named:
            folder = find_repo(name, self.repos.expanduser())
            if folder is not None:
                taken = {*known, *(entry.name for entry in found.values())}
                found[name] = there.get(str(folder.resolve())) or referenced(folder, IMPORTED, taken)
        return found


def _is_there(pin: Pin, known: Mapping[str, RepoEntry], store: Path) -> bool:
    entry = known.get(pin.package)
    return (
        entry is not None
        and entry.version == (pin.version or entry.version)
        and (store / "repos" / pin.package).exists()
    )


def _fetched(pin: Pin, index: str, store: Path) -> RepoEntry:
    from reflectrl.cli.data.packages import fetch
    from reflectrl.envs.autoexplore.making.imported import plain_name
    from reflectrl.envs.autoexplore.making.repositories import unpacked

    folder = store / DOWNLOADS
    folder.mkdir(parents=True, exist_ok=True)
    archive, taken = fetch(pin, index, folder)
    origin = f"pkg:pypi/{plain_name(taken.package)}@{taken.version}?file_name={archive.name}"  # a package URL
    entry = unpacked(archive, taken, origin, store)
    archive.unlink()
    return entry


def _require_writable(store: Path) -> None:
    probe = store / ".writable"
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"a library cannot be written to {store}: {error.strerror}") from error


def _clear(store: Path) -> None:
    """Remove the folders in which nothing is."""
    for folder in (store / DOWNLOADS, store / "repos", store):
        with suppress(OSError):
            folder.rmdir()


def _put_in_place(made: Path, store: Path) -> None:
    """The new library becomes the library."""
    old = store.with_name(f"{store.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if store.exists():
        store.rename(old)
    made.rename(store)
    shutil.rmtree(old, ignore_errors=True)


def _report(what: str, reasons: Counter[str], things: str) -> None:
    for reason, count in reasons.most_common():
        print(f"{what}: {count} {things}, {reason}")


def _show(named: str) -> None:
    """A table: files and questions per repository, then totals per split."""
    from reflectrl.envs.autoexplore.library import open_library
    from reflectrl.envs.autoexplore.making.table import lines

    library = open_library(named)
    print(library.folder)
    for line in lines(library):
        print(line)
