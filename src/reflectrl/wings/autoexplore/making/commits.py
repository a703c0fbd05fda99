"""Questions from the history of a git clone.

A commit is used if it changes a single source file and its message says why. The message becomes the question, the
changed file is the answer, and the parent commit's tree is the repository.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reflectrl.core.git import Commits, is_clone
from reflectrl.core.types import UserError, named_seed
from reflectrl.wings.autoexplore.library import RepoEntry
from reflectrl.wings.autoexplore.making.dropped import Dropped
from reflectrl.wings.autoexplore.making.english import participle, phrases, plain, said, shortened, third
from reflectrl.wings.autoexplore.making.rewording import reworded, tidy
from reflectrl.wings.autoexplore.making.tasks import Draft, DraftFilter, dropped_drafts
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository

LOOKED_AT = 4000
"""Largest number of commits that are examined, latest first."""
TOLD = (4, 30)
"""Smallest and largest number of words of a usable message."""
MOST_WORDS = 14
"""Largest number of words of a message that are used in the question."""
REWORDED = 0.25
"""Share of a message's words that are replaced."""
_SOURCES = re.compile(
    r".*\.(?:py|pyx|js|jsx|ts|tsx|go|rs|rb|java|kt|c|h|cc|cpp|hpp|cs|php|swift|scala|lua|sh|jl|r|ex|hs)", re.I
)
_TEST = re.compile(r"(?:^|/)(?:tests?|__tests__)/|(?:^|/)(?:test_[^/]*|[^/]*[._-]tests?\.\w+|conftest\.py)$")
_UNTELLING = re.compile(
    r"merge|revert|bump|release|version|typo|lint|format|flake8|black|isort|changelog|wip|pep ?8|whitespace|rename|"
    r"copyright|update docs|docstring|cleanup|clean up|refactor|type hints?|pyupgrade|pre-commit|\bci\b|backport",
    re.IGNORECASE,
)
_TRIMMED = re.compile(
    r"^(?:\[[^\]]*\]\s*|\w+(?:\([^)]*\))?!?:\s+|(?:fixe?[sd]?|refs?|closes?)\s+#?\d+\s*(?:--|-|:)?\s*)+"
    r"|(?:(?<!\s)\s++)?\(?#\d++\)?\.?\s*+$",
    re.IGNORECASE,
)
"""Prefixes and suffixes of a message that are removed: "feat(web): ", "(#123)"."""
_IS_FIX = re.compile(r"(?:\[[^\]]*\]\s*)?(?:bug)?fix(?:\([^)]*\))?!?:", re.IGNORECASE)
_FIX = re.compile(r"(?:fix(?:e[sd])?|correct(?:s|ed)?|prevent(?:s|ed)?|avoid(?:s|ed)?|handle[sd]?)\s+", re.I)


class Commit(NamedTuple):
    """Commit that changed a single source file."""

    sha: str
    path: str
    message: str


@dataclass
class Asked:
    """Questions from a clone's history, the trees that they ask about, and the commits that gave no question."""

    trees: list[RepoEntry] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)


def commit_questions(entry: RepoEntry, root: Path, trees: Path, most: int, seed: int) -> Asked:
    """Write questions about a clone's commits. A folder that is not a clone gives none.

    Args:
        entry: entry of the clone in the library.
        root: folder of the clone.
        trees: folder in which a folder NAME@COMMIT is made for each parent commit's tree.
        most: largest number of commits.
        seed: seed of the choice of commits and the wording.
    """
    rng = random.Random(named_seed("autoexplore-commits", seed, entry.name))
    collected = Asked()
    if not is_clone(root):
        return collected
    candidates = [commit for commit in telling_commits(root) if commit.path]
    with Commits(root) as commits:
        for commit in rng.sample(candidates, len(candidates)):
            if len(collected.trees) == most:
                break
            _ask(entry, commits, trees, commit, rng, collected)
    return collected


def _ask(entry: RepoEntry, commits: Commits, trees: Path, commit: Commit, rng: random.Random, asked: Asked) -> None:
    """Add the question about a commit and its parent's tree to `asked`, or the reason why there is none."""
    question = question_of_message(commit.message, rng)
    name = f"{entry.name}@{commit.sha[:10]}"
    source = f"{name}:{commit.path}"
    if question is None:
        asked.dropped.append(Dropped(source, "questions", "the commit's message cannot be turned into a question"))
        return
    folder = trees / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        commits.write_tree(f"{commit.sha}^", folder)
        repository = Repository.open(folder)
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        asked.dropped.append(Dropped(source, "questions", "the tree before the commit cannot be explored", question))
        return
    if commit.path not in repository:  # it was binary or hidden, for example
        shutil.rmtree(folder, ignore_errors=True)
        asked.dropped.append(Dropped(source, "tasks", "the file that answers it is left out of the tree", question))
        return
    # The tree of the parent was written first, because the filter compares the question with its files.
    draft_filter = DraftFilter(repository, rng)
    task = draft_filter.accepted(Draft(question, commit.path, "commit"))
    if task is None:
        shutil.rmtree(folder, ignore_errors=True)
        asked.dropped += dropped_drafts(name, draft_filter.dropped)
        return
    asked.trees.append(RepoEntry(name, f"{commit.sha[:12]}^", entry.origin, entry.licence, entry.split))
    asked.questions.append(Question(f"{name}-0", name, task.question, (commit.path,), "commit", entry.licence))


def telling_commits(root: Path) -> Iterator[Commit]:
    """Yield the latest commits that change a single source file, not counting tests, and have a usable message."""
    shape = ("--no-merges", "--no-renames", "--name-status", "-z", "--format=%x01%H%x02%s%x02")
    with Commits(root) as commits:
        log = commits.run("log", f"--max-count={LOOKED_AT}", *shape, commits.head)
    for record in log.decode("utf-8", "replace").split("\x01")[1:]:
        sha, message, names = record.split("\x02", 2)
        fields = [name for name in names.strip("\0\n").split("\0") if name]
        changed = [(kind.strip(), path) for kind, path in zip(fields[::2], fields[1::2], strict=False)]
        sources = [(kind, path) for kind, path in changed if _SOURCES.fullmatch(path) and not _TEST.search(path)]
        if len(sources) == 1 and sources[0][0] == "M" and is_telling(message):
            yield Commit(sha, sources[0][1], message)


def is_telling(message: str) -> bool:
    """Return whether a message describes the purpose of its commit."""
    message = _TRIMMED.sub("", message)
    return TOLD[0] <= len(message.split()) <= TOLD[1] and not _UNTELLING.search(message)


def question_of_message(message: str, rng: random.Random) -> str | None:
    """Turn the message of a commit into a question; return None if the message cannot be parsed."""
    text = plain(_TRIMMED.sub("", message))
    if (fix := _FIX.match(text)) is not None:
        return _about_trouble(text[fix.end() :], rng)
    what = said(text)
    if what is None or not what.verb:
        return _about_trouble(text, rng) if _IS_FIX.match(message) else None
    forms = {"base": what.verb, "third": third(what.verb), "done": participle(what.verb)}
    rest = reworded(shortened(what.rest, MOST_WORDS), rng, REWORDED)
    return tidy(rng.choice(phrases("changing")).format(rest=rest, **forms))


def _about_trouble(trouble: str, rng: random.Random) -> str | None:
    trouble = reworded(shortened(trouble, MOST_WORDS), rng, REWORDED)
    return tidy(rng.choice(phrases("fixing")).format(what=trouble)) if len(trouble.split()) > 2 else None
