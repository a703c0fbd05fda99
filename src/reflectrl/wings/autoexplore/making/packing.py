"""Pack a library as a published data set, and unpack it again.

DATASHEET.md                what the data set is, how it was made, and its limits
SHA256SUMS                  digests of all other files
repos.jsonl, questions/     as in any library; only the splits, no imported sets
repos/NAME/...              the files to explore of each repository that may be passed on
provenance.jsonl            a line per repository (`Provenance`), also of those that are left out
written.json                how the questions were written, if it is known
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from json import dumps
from pathlib import Path

from reflectrl.core.envs.base import SPLITS
from reflectrl.core.types import UserError
from reflectrl.models.cards import read_json
from reflectrl.tools.exporting.archive import SUMS, read_archive, require_archive_name, sums_of, write_archive
from reflectrl.wings.autoexplore.library import QUESTIONS, REPOS, Library, RepoEntry
from reflectrl.wings.autoexplore.making.licences import is_licence_file, is_permissive
from reflectrl.wings.autoexplore.making.make import ACCOUNT
from reflectrl.wings.autoexplore.making.repositories import package_sha256
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Unreadable

ROOT = "autoexplore"
"""Name of the folder in the archive."""
DATASHEET, PROVENANCE = "DATASHEET.md", "provenance.jsonl"


@dataclass(frozen=True)
class Provenance:
    """Origin of a repository in a published data set."""

    name: str
    version: str
    split: str
    origin: str
    """Package URL; "" for a folder of the maker."""
    sha256: str
    """SHA-256 of the package's file; "" if the table of packages does not have this version."""
    licence: str
    licence_files: tuple[str, ...]
    """Paths of the licence's texts in the repository."""
    left_out: str
    """Reason why the repository and the questions about it are not in the data set; "" if they are."""
    questions: int
    """Number of questions about it in the library."""
    files: int
    """Number of files to explore."""
    bytes: int
    digest: str
    """SHA-256 of the list of the files' digests, in the format of `sha256sum`, sorted by path."""


@dataclass(frozen=True)
class Contents:
    """Contents of a published data set.

    Attributes:
        repositories: origin of each repository, also of those that are left out; sorted by name.
        questions: split → questions about the repositories that are included.
        files: path in the data set → its repository and its path there.
        account: settings with which the questions were written; empty if they are not known.
        imported: name of each imported set, none of which is included → number of its questions.
    """

    repositories: tuple[Provenance, ...]
    questions: Mapping[str, tuple[Question, ...]]
    files: Mapping[str, tuple[Repository, str]]
    account: Mapping[str, object]
    imported: Mapping[str, int]


# ---- packing ---------------------------------------------------------------------------------------------------------


def pack_library(library: Library, path: Path) -> tuple[Contents, str]:
    """Write the repositories and questions of a library's splits to an archive. Equal libraries give equal bytes.

    Repositories without a permissive licence, or without its text, are named with their digests. Neither their files
    nor questions about them are included, since the questions are made of their words.

    Args:
        path: archive to write.

    Returns:
        The contents, and the SHA-256 of the list of digests.

    Raises:
        UserError: the library has no question that may be passed on, a file has changed meanwhile, or the archive
            cannot be written.
    """
    from reflectrl.wings.autoexplore.making.datasheet import datasheet

    require_archive_name(path)
    contents = contents_of(library)
    entries = [_published(library.repos[each.name]) for each in contents.repositories if not each.left_out]
    texts = {
        DATASHEET: datasheet(contents),
        PROVENANCE: _lines([asdict(each) for each in contents.repositories]),
        REPOS: _lines([asdict(entry) for entry in entries]),
    }
    if contents.account:
        texts[ACCOUNT] = dumps(contents.account, indent=1) + "\n"
    for split, questions in contents.questions.items():
        texts[f"{QUESTIONS}/{split}.jsonl"] = _lines([asdict(question) for question in questions])
    return contents, write_archive(path, ROOT, _members(texts, contents.files))


def contents_of(library: Library) -> Contents:
    """Collect what a library's published data set contains. Raises UserError if there is nothing to publish."""
    questions = {split: library.questions(split) for split in library.splits if split in SPLITS}
    counts = dict.fromkeys(library.repos, 0)
    for question in (question for own in questions.values() for question in own):
        counts[question.repo] += 1
    repositories: list[Provenance] = []
    files: dict[str, tuple[Repository, str]] = {}
    for entry in sorted(library.repos.values(), key=lambda entry: entry.name):
        if entry.split not in SPLITS:
            continue
        repository = library.repository(entry.name)
        repositories.append(_provenance(entry, repository, counts[entry.name]))
        if not repositories[-1].left_out:
            files |= {f"repos/{entry.name}/{path}": (repository, path) for path in repository}
    included = {each.name for each in repositories if not each.left_out}
    passed_on: dict[str, tuple[Question, ...]] = {}
    for split, own in questions.items():
        if about_included := tuple(question for question in own if question.repo in included):
            passed_on[split] = about_included
    if not passed_on:
        why = "none of its repositories may be passed on" if any(counts.values()) else "it has no questions"
        raise UserError(f"{library.folder} cannot be packed: {why}")
    imported = {name: len(library.questions(name)) for name in library.splits if name not in SPLITS}
    account = read_json(library.folder / ACCOUNT) if (library.folder / ACCOUNT).exists() else {}
    return Contents(tuple(repositories), passed_on, files, account, imported)


def _provenance(entry: RepoEntry, repository: Repository, questions: int) -> Provenance:
    licence_files = tuple(path for path in repository if is_licence_file(path))
    left_out = ""
    if not is_permissive(entry.licence):
        left_out = "no permissive licence"
    elif not licence_files:
        left_out = "no text of its licence"  # which copies would have to include
    digests = {path: sha256(_content(repository, path)).hexdigest() for path in repository}
    return Provenance(
        entry.name,
        entry.version,
        entry.split,
        _published(entry).origin,
        package_sha256(entry),
        entry.licence,
        licence_files,
        left_out,
        questions,
        len(repository),
        sum(map(repository.size, repository)),
        sha256(sums_of(digests).encode("utf-8")).hexdigest(),
    )


def _published(entry: RepoEntry) -> RepoEntry:
    """Return the entry without paths of the machine on which the library lies."""
    return replace(entry, path="", origin=entry.origin if entry.origin.startswith("pkg:") else "")


def _members(texts: Mapping[str, str], files: Mapping[str, tuple[Repository, str]]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of everything in the archive, sorted by path."""
    for name in sorted([*texts, *files]):
        yield name, texts[name].encode("utf-8") if name in texts else _content(*files[name])


def _content(repository: Repository, path: str) -> bytes:
    content = repository.original(path, repository.size(path))
    if isinstance(content, Unreadable):
        raise UserError(f"{repository.root / path} cannot be packed: {content.reason}")
    return content[0]


def _lines(rows: Sequence[object]) -> str:
    return "".join(dumps(row, ensure_ascii=False) + "\n" for row in rows)


# ---- unpacking -------------------------------------------------------------------------------------------------------


def unpack_library(archive: Path, folder: Path) -> str:
    """Unpack a published data set into an empty folder, which is then a library.

    After an error, `folder` may hold a part of it; remove it.

    Returns:
        The SHA-256 of the list of digests.

    Raises:
        UserError: the archive is damaged, unsafe, or no such data set.
    """
    digest = read_archive(archive, folder, _is_expected)
    try:
        _check(Library(folder))
    except UserError as error:
        raise UserError(f"{archive} is not a published library: {str(error).replace(f'{folder}/', '')}") from error
    return digest


def remove_description(folder: Path) -> None:
    """Remove what describes an unpacked data set from a library, since the library is about to be changed."""
    for name in (DATASHEET, PROVENANCE, SUMS):
        (folder / name).unlink(missing_ok=True)


def _is_expected(path: str) -> bool:
    """Return whether a path is one of a published data set. Hidden names never are."""
    first, *rest = path.split("/")
    if any(name.startswith(".") for name in (first, *rest)):
        return False
    if first == QUESTIONS:
        return rest in [[f"{split}.jsonl"] for split in SPLITS]
    return len(rest) > 1 if first == "repos" else path in (DATASHEET, PROVENANCE, REPOS, ACCOUNT)


def _check(library: Library) -> None:
    """Raise UserError unless a library is complete and refers to nothing outside of itself."""
    for entry in library.repos.values():
        if entry.path:
            raise UserError(f"{REPOS}: {entry.name!r} lies outside of it, in {entry.path!r}")
        library.repository(entry.name)
    if not library.splits:
        raise UserError("it has no questions")
    for split in library.splits:
        library.questions(split)
