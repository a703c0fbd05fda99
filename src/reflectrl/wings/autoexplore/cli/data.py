"""`data autoexplore`: make a library of repositories and questions, or print what the library holds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from reflectrl import __version__
from reflectrl.core.config.folders import data_folder, require_writable
from reflectrl.core.digests import digest_of
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, bar, refuse_unknown
from reflectrl.wings.autoexplore.cli.getting import DOWNLOADS, beside, get_named, get_table, reference

if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.library import Library
    from reflectrl.wings.autoexplore.making.make import Writer

ANSWERS = "answers.jsonl"
"""File in the library that caches the answers of the language model."""


@dataclass(frozen=True)
class AutoExploreData(Data):
    """Make AutoExplore's library of repositories and questions. Without options, print what the library holds."""

    download: bool = False
    """Download the built-in packages from a package index; with --import, only the packages that are asked about."""
    from_: Annotated[
        tuple[tuple[Path, ...], ...], tyro.conf.arg(name="from", metavar="DIR ..."), tyro.conf.UseAppendAction
    ] = ()
    """Use these folders (git clones, for example) as repositories. They are not copied."""
    import_: Annotated[Path | None, tyro.conf.arg(name="import", metavar="FILE")] = None
    """Add questions from a file of JSON lines with repo (owner/name), question and gold (paths)."""
    repos: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder that holds the repositories of imported questions, one subfolder for each."""
    stage: Annotated[Literal["repos", "questions", "all"], tyro.conf.arg(metavar="STAGE")] = "all"
    """repos: only get the repositories. questions: only write questions about the repositories in the library."""
    writer: Annotated[Literal["rules", "endpoint"], tyro.conf.arg(metavar="WRITER")] = "rules"
    """Writer of the questions: rules (no language model), or endpoint (a language model that is sent the files)."""
    endpoint: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """For --writer endpoint: OpenAI-compatible address, such as http://127.0.0.1:8000/v1, or Azure's resource."""
    model: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """For --writer endpoint: the server's name for the model. For Azure, the deployment's name."""
    api: Annotated[Literal["openai", "azure"], tyro.conf.arg(metavar="API")] = "openai"
    """For --writer endpoint: openai for OpenAI and all servers compatible with it, or azure."""
    api_version: Annotated[str, tyro.conf.arg(metavar="VERSION")] = ""
    """For --api azure: version of Azure's API, such as 2024-10-21."""
    key_env: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """For --writer endpoint: environment variable that holds the server's API key, if the server needs a key."""
    max_requests: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """For --writer endpoint: largest number of requests per library, with retries and earlier runs; 0 for no limit."""
    prompt: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """For --writer endpoint: Jinja template of the prompt, with the variables path, text and count. It may use no
    other, and has to use text."""
    per_repo: Annotated[int, tyro.conf.arg(metavar="N")] = 300
    """Largest number of questions about a repository."""
    commits: Annotated[int, tyro.conf.arg(metavar="N")] = 10
    """Largest number of commits of each git clone to ask about. Each needs a copy of the parent commit's files."""
    split_by: Annotated[Literal["repository", "task"], tyro.conf.arg(metavar="WHAT")] = "repository"
    """Split into training, validation and test by repository, or by question (7 : 2 : 1)."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of all random choices."""
    store: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of the library. The default is $REFLECTRL_DATA/autoexplore or ~/.cache/reflectrl/autoexplore."""
    replace: bool = False
    """Replace an existing library with a new one."""
    index: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """Package index of --download. The default is pip's index."""
    pack: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the library to this archive (.tar.gz), as a data set to publish: with licences, digests and a datasheet."""
    unpack: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Check an archive that --pack wrote, and unpack it as the library."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Make the requested parts of the library, then print what it holds."""
        refuse_unknown(settings, type(self))
        for is_wrong, why in self._mistakes():
            if is_wrong:
                raise UserError(f"data: {why}")
        if self.prompt is not None:
            from reflectrl.wings.autoexplore.making.endpoint import read_prompt

            read_prompt(self.prompt)  # fails before anything is made or sent
        from reflectrl.tools.exporting.archive import require_archive_name
        from reflectrl.wings.autoexplore.library import open_library

        store = data_folder("autoexplore", self.store)
        if self.stage == "questions":
            open_library(self.store)  # fails before anything is made
        if self.pack is not None:
            require_archive_name(self.pack)
        if self.replace:
            _require_library(store)
        if self.unpack is not None:
            self._unpack(self.unpack, store)
        elif self.download or self.from_ or self.import_ is not None or self.stage == "questions":
            target = store.with_name(f"{store.name}.making") if self.replace else store
            require_writable(target, f"a library cannot be written to {target}")
            try:
                lists = self._make(target)
            finally:
                for folder in (target / DOWNLOADS, target / "repos", target):  # `rmdir` removes empty folders only
                    with suppress(OSError):
                        folder.rmdir()
            if self.replace:
                _put_in_place(target, store)
            for path in lists:
                print(f"listed with reasons: {store / path}")
        from reflectrl.wings.autoexplore.making.make import lines

        library = open_library(self.store)
        print(library.folder, *lines(library), sep="\n")
        if self.pack is not None:
            _pack(library, self.pack)

    def _mistakes(self) -> Iterator[tuple[bool, str]]:
        """Yield every check of the options: whether it fails, and the error message."""
        imports = self.import_ is not None
        yield self.download and bool(self.from_), "only one of --download, --from DIR at a time"
        yield () in self.from_, "--from needs a folder"
        yield (
            imports and bool(self.from_),
            "--import takes its repositories from --repos DIR or --download, not from --from",
        )
        one_of = self.download != (self.repos is not None)
        yield imports and not one_of, "--import needs --repos DIR, or --download to get the repositories"
        yield self.repos is not None and not imports, "--repos needs --import FILE"
        gets = self.download or bool(self.from_) or imports
        yield (
            self.stage == "questions" and gets,
            "--stage questions asks about the library's repositories; leave out --download, --from and --import",
        )
        unpacks = self.unpack is not None
        yield (
            unpacks and (gets or self.stage != "all" or self.pack is not None),
            "--unpack FILE goes with no other source",
        )
        yield (
            self.replace and not (self.download or self.from_ or unpacks),
            "--replace needs --download, --from DIR or --unpack FILE",
        )
        yield self.stage == "repos" and self.pack is not None, "--pack needs questions; leave out --stage repos"
        yield self.replace and imports, "--import adds to a library; it cannot --replace one"
        yield (
            self.per_repo < 1 or self.commits < 0 or self.max_requests < 0,
            ("--per-repo must be at least 1, --commits and --max-requests at least 0"),
        )
        yield (
            len({self.writer == "endpoint", bool(self.endpoint), bool(self.model)}) > 1,
            "--writer endpoint, --endpoint URL and --model NAME go together; give all three, or none",
        )
        yield self.prompt is not None and self.writer != "endpoint", "--prompt FILE needs --writer endpoint"
        azure = self.api == "azure"
        yield azure and self.writer != "endpoint", "--api azure needs --writer endpoint"
        yield azure != bool(self.api_version), "--api azure and --api-version VERSION go together"

    def _make(self, store: Path) -> list[Path]:
        """Make the requested parts of a library in a folder. Return the lists of what was left out, within it."""
        from reflectrl.wings.autoexplore.making.dropped import summary, write_dropped
        from reflectrl.wings.autoexplore.making.make import make_questions, write_account
        from reflectrl.wings.autoexplore.making.packing import remove_description

        remove_description(store)
        if self.import_ is not None:
            return self._import(self.import_, store)
        lists = []
        if self.download:
            lists += write_dropped(store, "repos", get_table(self.index, store))
        elif self.from_:
            folders = [path for paths in self.from_ for path in paths]
            lists += write_dropped(store, "repos", reference(folders, store, self.seed, self.split_by == "task"))
        if self.stage == "repos":
            return lists
        writer, account = self._writer(store)
        with bar("questions") as progress:
            dropped = make_questions(store, writer, self.seed, self.split_by == "task", self.commits, progress)
        limits = {"seed": self.seed, "per_repo": self.per_repo, "commits": self.commits, "split_by": self.split_by}
        write_account(store, {**account, **limits, "reflectrl": __version__})
        for line in summary(dropped):
            print(line)
        return lists + write_dropped(store, "questions", dropped)

    def _unpack(self, archive: Path, store: Path) -> None:
        """Unpack a published library beside `store`, and move it there when it is complete and checked."""
        from reflectrl.wings.autoexplore.making.packing import unpack_library

        if not archive.is_file():
            raise UserError(f"there is no file {archive}")
        if store.exists() and not self.replace and (not store.is_dir() or any(store.iterdir())):
            raise UserError(f"{store} already exists; replace it with --replace, or name another folder with --store")
        require_writable(store.parent, f"a library cannot be written to {store}")
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=store.parent, ignore_cleanup_errors=True) as beside:
            fresh = Path(beside) / "library"
            fresh.mkdir()
            digest = unpack_library(archive, fresh)
            _put_in_place(fresh, store)
        print(f"{archive}: all digests fit; content {digest}")

    def _writer(self, store: Path) -> tuple[Writer, dict[str, str]]:
        """Return the writer of the questions, and its description for the library."""
        if self.writer == "rules":
            from reflectrl.wings.autoexplore.making.tasks import write_questions_about

            return partial(write_questions_about, seed=self.seed, per_repo=self.per_repo), {"writer": "rules"}
        from reflectrl.serving.endpoints.client import Endpoint
        from reflectrl.serving.endpoints.config import EndpointConfig
        from reflectrl.serving.endpoints.journal import Budget, Cost, Journal
        from reflectrl.wings.autoexplore.making.endpoint import EndpointWriter, built_in_prompt, read_prompt
        from reflectrl.wings.autoexplore.making.make import repositories

        prompt = built_in_prompt() if self.prompt is None else read_prompt(self.prompt)
        config = EndpointConfig(self.endpoint, self.model, self.key_env, self.api, self.api_version)
        chat = Endpoint(config, Journal(store / ANSWERS, Budget(requests=self.max_requests)))
        writer = EndpointWriter(chat, self.per_repo, self.seed, prompt)
        cost = sum(
            (writer.estimate(*named_repository) for named_repository in repositories(store)), start=Cost(requests=0)
        )
        estimate = f"{cost.requests} requests and about {cost.tokens_in + cost.tokens_out} tokens at most"
        print(f"the files of the repositories are sent to {self.endpoint}: {estimate}", flush=True)
        return writer, {"writer": "endpoint", "model": self.model, "prompt_sha256": prompt.sha256}

    def _import(self, path: Path, store: Path) -> list[Path]:
        from reflectrl.wings.autoexplore.making.dropped import summary, write_dropped
        from reflectrl.wings.autoexplore.making.imported import by_repo, read_imported, set_name
        from reflectrl.wings.autoexplore.making.make import import_set

        imported = read_imported(path)
        name = set_name(imported, path)
        repo_names = list(by_repo(imported))
        if self.repos is None:
            repos, dropped = get_named(repo_names, self.index, store)
        else:
            repos, dropped = beside(repo_names, self.repos, store)
        if self.stage == "repos":
            return write_dropped(store, f"import-{name}", dropped)
        left_out = import_set(store, name, imported, repos)
        print(f"{name}: {len(imported) - len(left_out)} of {len(imported)} questions have a repository and a gold file")
        for line in summary(left_out):
            print(line)
        return write_dropped(store, f"import-{name}", [*dropped, *left_out])


def _pack(library: Library, path: Path) -> None:
    from reflectrl.wings.autoexplore.making.packing import pack_library

    contents, digest = pack_library(library, path)
    included = [each for each in contents.repositories if not each.left_out]
    count = sum(map(len, contents.questions.values()))
    print(f"{path}: {len(included)} repositories, {count} questions, {path.stat().st_size / 2**20:.1f} MiB")
    print(f"content {digest}", f"archive {digest_of(path)}", sep="\n")
    for each in contents.repositories:
        if each.left_out:
            print(f"by reference only: {each.name} ({each.licence}, {each.left_out}), {each.questions} questions")
    for name, questions in contents.imported.items():
        print(f"left out: {name}, {questions} imported questions, which are others' to publish")


def _require_library(store: Path) -> None:
    """Refuse to replace a folder with something other than a library in it."""
    from reflectrl.wings.autoexplore.library import REPOS

    if store.exists() and not (store / REPOS).is_file() and (not store.is_dir() or any(store.iterdir())):
        raise UserError(f"{store} is not a library (it has no {REPOS}), so it is not replaced")


def _put_in_place(made: Path, store: Path) -> None:
    """Replace the library with the new one. The old one is renamed first, so a failure never leaves half a library."""
    old = store.with_name(f"{store.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if store.exists():
        store.rename(old)
    made.rename(store)
    shutil.rmtree(old, ignore_errors=True)
