"""Filling a library: questions of the splits, and imported sets. It stays readable while new things are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from reflectrl.envs.base import SPLITS
from reflectrl.types import UserError
from reflectrl.wings.autoexplore.library import QUESTIONS, Library, RepoEntry
from reflectrl.wings.autoexplore.making.commits import commit_questions, is_clone
from reflectrl.wings.autoexplore.making.imported import by_repo, matched
from reflectrl.wings.autoexplore.making.repositories import entries, write_entries
from reflectrl.wings.autoexplore.making.splitting import split_by_task, split_of_repositories
from reflectrl.wings.autoexplore.questions import Question, write_questions
from reflectrl.wings.autoexplore.repository import Repository

Writer = Callable[[str, Repository, str], tuple[list[Question], Counter[str]]]
"""Called with a repository's name, its files and its licence; returns questions, and why drafts were refused."""
Tick = Callable[[int, int, str], None]
"""Called with (done, total, what) as the work goes on."""


def add_repositories(store: Path, found: Iterable[RepoEntry]) -> None:
    """Add repositories to the list of a library, in the place of those of the same names."""
    write_entries(store, {**entries(store), **{entry.name: entry for entry in found}}.values())


def make_questions(
    store: Path, writer: Writer, seed: int, by_task: bool, commits: int, tick: Tick = lambda done, total, what: None
) -> Counter[str]:
    """Write questions about every repository of the splits, in the place of those that were there.

    Args:
        store: the library.
        writer: writes questions about one repository.
        seed: for the split by task, and for the choice of commits.
        by_task: whether questions, rather than repositories, are divided among the splits.
        commits: so many commits of each git clone are asked about, at most, each at its parent's tree.
        tick: told how far the work is.

    Returns:
        Reason → how many drafts were refused for it.

    Raises:
        UserError: there is no repository to ask about, or a split stays empty, or nothing can be written.
    """
    library = Library(store)
    own = [entry for entry in library.repos.values() if entry.split in SPLITS and not _is_tree(entry)]
    if not own:
        raise UserError(f"{store} has no repository to ask about: --download or --from DIR ... brings some")
    dropped: Counter[str] = Counter()
    found: dict[str, list[Question]] = {split: [] for split in SPLITS}
    trees: list[RepoEntry] = []
    for done, entry in enumerate(own, 1):
        questions, refused = writer(entry.name, library.repository(entry.name), entry.licence)
        dropped += refused
        found[entry.split] += questions
        if commits and is_clone(library.root(entry.name)):
            asked = commit_questions(entry, library.root(entry.name), store / "repos", commits, seed)
            trees += asked.trees
            found[entry.split] += asked.questions
        tick(done, len(own), f"repositories asked about: {sum(map(len, found.values()))} questions")
    others = [entry for entry in library.repos.values() if not (entry.split in SPLITS and _is_tree(entry))]
    write_entries(store, [*others, *trees])
    _write_splits(
        store, split_by_task([question for each in found.values() for question in each], seed) if by_task else found
    )
    return dropped


def _is_tree(entry: RepoEntry) -> bool:
    """Whether this is the tree of a commit, made for a question about it."""
    return "@" in entry.name


def _write_splits(store: Path, found: Mapping[str, Sequence[Question]]) -> None:
    (store / QUESTIONS).mkdir(exist_ok=True)
    for split, questions in found.items():
        if questions:
            write_questions(store / QUESTIONS / f"{split}.jsonl", questions)
        else:
            (store / QUESTIONS / f"{split}.jsonl").unlink(missing_ok=True)


def own_splits(names: Sequence[str], seed: int, by_task: bool) -> dict[str, str]:
    """Name → split, for repositories of the user's own; all are "train" where questions are divided instead."""
    return dict.fromkeys(names, SPLITS[0]) if by_task else split_of_repositories(names, seed)


def import_set(store: Path, name: str, asked: Sequence[Question], repos: Mapping[str, RepoEntry]) -> Counter[str]:
    """Add a set of imported questions, and their repositories, to a library.

    Args:
        store: the library.
        name: of the set.
        asked: the questions as they were read.
        repos: owner/name → the repository that stands for it. Those that no question needs are not added.

    Returns:
        Reason → how many questions were left out for it.

    Raises:
        UserError: not one question can be asked.
    """
    known = entries(store)
    needed = {repo: repos[repo] for repo in by_repo(asked) if repo in repos}
    add_repositories(store, [entry for entry in needed.values() if entry.name not in known])
    library = Library(store)
    opened = {
        repo: (entry.name, library.repos[entry.name].licence, library.repository(entry.name))
        for repo, entry in needed.items()
    }
    found, left_out = matched(asked, opened)
    if not found:
        raise UserError(f"not one of the {len(asked)} questions of {name} can be asked: {_counted(left_out)}")
    (store / QUESTIONS).mkdir(exist_ok=True)
    write_questions(store / QUESTIONS / f"{name}.jsonl", found)
    return left_out


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common()) or "there are none"
