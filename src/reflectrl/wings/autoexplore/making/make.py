"""Fill a library with questions and imported sets. The library stays readable meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from reflectrl.core.config.folders import replacing, writing
from reflectrl.core.envs.base import SPLITS, divide
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.library import QUESTIONS, Library, RepoEntry
from reflectrl.wings.autoexplore.making.commits import commit_questions
from reflectrl.wings.autoexplore.making.dropped import Dropped
from reflectrl.wings.autoexplore.making.imported import by_repo, matched
from reflectrl.wings.autoexplore.making.repositories import entries, write_entries
from reflectrl.wings.autoexplore.making.rewording import leaks
from reflectrl.wings.autoexplore.questions import Question, write_questions
from reflectrl.wings.autoexplore.repository import Repository

ACCOUNT = "written.json"
"""File in the library that says how the questions of the splits were written."""
Writer = Callable[[str, Repository, str], tuple[list[Question], list[Dropped]]]
"""Function (name, repository, licence) → questions, and what gave no question."""
ProgressCallback = Callable[[int, int, str], None]
"""Progress callback, called with (done, total, what)."""


def add_repositories(store: Path, repositories: Iterable[RepoEntry]) -> None:
    """Add repositories to the list of a library. An entry with the same name is replaced."""
    write_entries(store, {**entries(store), **{entry.name: entry for entry in repositories}}.values())


def make_questions(
    store: Path,
    writer: Writer,
    seed: int,
    by_task: bool,
    commits: int,
    progress: ProgressCallback = lambda done, total, what: None,
) -> list[Dropped]:
    """Write questions about every repository of the splits. Existing questions are replaced.

    A repository that cannot be read any more is left out; it stays in the list of repositories.

    Args:
        store: folder of the library.
        writer: writer of the questions about one repository.
        seed: seed of the split by task and the choice of commits.
        by_task: divide questions, rather than repositories, among the splits.
        commits: largest number of commits of each git clone to ask about, each in its parent commit's tree.
        progress: progress callback.

    Returns:
        What was left out: repositories, answers and commits without a question, and refused drafts.

    Raises:
        UserError: there is no repository to ask about, none can be read, a split is empty, or a file cannot be written.
    """
    library = Library(store)
    if not _own(library):
        raise UserError(f"{store} has no repository to ask about: get some with --download or --from DIR ...")
    own, dropped = _readable(library)
    if not own:
        raise UserError(dropped[0].reason)
    by_split: dict[str, list[Question]] = {split: [] for split in SPLITS}
    trees: list[RepoEntry] = []
    for done, (entry, repository) in enumerate(own, 1):
        questions, refused = writer(entry.name, repository, entry.licence)
        dropped += refused
        by_split[entry.split] += questions
        if commits:
            from_commits = commit_questions(entry, library.root(entry.name), store / "repos", commits, seed)
            trees += from_commits.trees
            by_split[entry.split] += from_commits.questions
            dropped += from_commits.dropped
        progress(done, len(own), f"repositories asked about: {sum(map(len, by_split.values()))} questions")
    others = [entry for entry in library.repos.values() if not (entry.split in SPLITS and _is_tree(entry))]
    write_entries(store, [*others, *trees])
    if by_task:
        by_split = split_by_task([question for each in by_split.values() for question in each], seed)
    (store / QUESTIONS).mkdir(exist_ok=True)
    for split, questions in by_split.items():
        if questions:
            write_questions(store / QUESTIONS / f"{split}.jsonl", questions)
        else:
            (store / QUESTIONS / f"{split}.jsonl").unlink(missing_ok=True)
    return dropped


def write_account(store: Path, account: Mapping[str, str | int]) -> None:
    """Write how the questions of the splits were written: writer, seed, limits, and a model's prompt by its hash.

    Raises:
        UserError: the file cannot be written.
    """
    path = store / ACCOUNT
    with writing(path), replacing(path) as file:
        file.write(json.dumps(account, indent=1) + "\n")


def repositories(store: Path) -> Iterator[tuple[str, Repository]]:
    """Yield name and repository of each repository that questions are written about."""
    readable, _ = _readable(Library(store))
    for entry, repository in readable:
        yield entry.name, repository


def _readable(library: Library) -> tuple[list[tuple[RepoEntry, Repository]], list[Dropped]]:
    """Open the repositories of the splits. Return those that can be read, and the others."""
    readable, dropped = [], []
    for entry in _own(library):
        try:
            readable.append((entry, library.repository(entry.name)))
        except UserError as error:  # a folder of the user that has moved, for example
            dropped.append(Dropped(entry.name, "repos", str(error)))
    return readable, dropped


def _own(library: Library) -> list[RepoEntry]:
    return [entry for entry in library.repos.values() if entry.split in SPLITS and not _is_tree(entry)]


def _is_tree(entry: RepoEntry) -> bool:
    """Return whether an entry is the tree of a commit, made for a question about that commit."""
    return "@" in entry.name


def import_set(store: Path, name: str, asked: Sequence[Question], repos: Mapping[str, RepoEntry]) -> list[Dropped]:
    """Add a set of imported questions, and their repositories, to a library.

    Args:
        store: folder of the library.
        name: name of the set.
        asked: questions from `read_imported`.
        repos: owner/name → entry of the repository. Repositories that no question needs are not added.

    Returns:
        The questions that were left out.

    Raises:
        UserError: no question has a repository and a gold file.
    """
    existing = entries(store)
    needed = {repo: repos[repo] for repo in by_repo(asked) if repo in repos}
    add_repositories(store, [entry for entry in needed.values() if entry.name not in existing])
    library = Library(store)
    opened = {
        repo: (entry.name, library.repos[entry.name].licence, library.repository(entry.name))
        for repo, entry in needed.items()
    }
    questions, left_out = matched(asked, opened)
    if not questions:
        reasons = Counter(entry.reason for entry in left_out)
        why = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common()) or "there are none"
        raise UserError(f"not one of the {len(asked)} questions of {name} can be asked: {why}")
    (store / QUESTIONS).mkdir(exist_ok=True)
    write_questions(store / QUESTIONS / f"{name}.jsonl", questions)
    return left_out


def lines(library: Library) -> Iterator[str]:
    """Render a table: per set and repository the licence, number of files, and questions by source; then totals."""
    sources = sorted({question.source for split in library.splits for question in library.questions(split)})
    heading = f"{'set':12} {'repository':28} {'version':14} {'licence':18} {'files':>6}"
    yield heading + "".join(f"{source:>11}" for source in sources) + f"{'all':>8}  names file"
    for split in library.splits:
        by_repo: dict[str, list[Question]] = {}
        for question in library.questions(split):
            by_repo.setdefault(question.repo, []).append(question)
        for name, questions in sorted(by_repo.items()):
            entry = library.repos[name]
            files = len(library.repository(name))
            head = f"{split:12} {name[:28]:28} {entry.version[:14]:14} {entry.licence[:18]:18} {files:6}"
            yield head + _counts(questions, sources)
        yield f"{split:12} {'all ' + str(len(by_repo)) + ' repositories':69}" + _counts(
            library.questions(split), sources
        )
    unasked = sorted({*library.repos} - {each.repo for split in library.splits for each in library.questions(split)})
    if unasked:
        yield f"without questions: {', '.join(unasked)}"


def leak_share(questions: Sequence[Question]) -> float:
    """Return the share of questions that name a file of their answer (`rewording.leaks`); 0 if there are none."""
    named = sum(any(leaks(question.question, path) for path in question.gold) for question in questions)
    return named / len(questions) if questions else 0.0


def _counts(questions: Sequence[Question], sources: Sequence[str]) -> str:
    counts = Counter(question.source for question in questions)
    return "".join(f"{counts[source]:11}" for source in sources) + f"{len(questions):8}  {leak_share(questions):10.1%}"


FEWEST = 3
"""Smallest number of repositories, or questions, that can be divided among the three splits."""


def split_of_repositories(names: Sequence[str], seed: int) -> dict[str, str]:
    """Return name → split: a tenth for validation and two tenths for test, but at least one repository for each.

    Raises:
        UserError: there are fewer than three repositories.
    """
    if len(names) < FEWEST:
        raise UserError(
            f"{len(names)} repositories cannot be split by repository into train, validation and test: "
            "name at least three, or split by task (--split-by task)"
        )
    validation, test = max(1, round(len(names) / 10)), max(1, round(len(names) / 5))
    sizes = {"train": len(names) - validation - test, "validation": validation, "test": test}
    divided = divide(sorted(names), sizes, "autoexplore-repositories", seed)
    return {name: split for split, own in divided.items() for name in own}


def split_by_task(questions: Sequence[Question], seed: int) -> dict[str, list[Question]]:
    """Return split → questions, 7 : 2 : 1 for training, validation and test, regardless of the repository.

    This is the paper's split (Reflect-RL, AutoExplore). A policy may then use what it learnt about a repository in
    training. (The split by repository is ours. It tests on two tenths, since one tenth of a few repositories is only
    one or two of them.)

    Raises:
        UserError: there are fewer than three questions.
    """
    if len(questions) < FEWEST:
        raise UserError(f"{len(questions)} questions cannot be split into train, validation and test")
    validation, test = max(1, round(len(questions) / 5)), max(1, round(len(questions) / 10))
    sizes = {"train": len(questions) - validation - test, "validation": validation, "test": test}
    ordered = sorted(questions, key=lambda question: question.id)
    divided = divide(ordered, sizes, "autoexplore-tasks", seed)
    return {split: sorted(own, key=lambda question: question.id) for split, own in divided.items()}
