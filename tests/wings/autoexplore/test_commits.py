"""Questions from a clone's history, asked at the parent's tree; nothing runs that the clone configures."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.library import RepoEntry
from reflectrl.wings.autoexplore.making.commits import (
    commit_questions,
    is_clone,
    is_telling,
    question_of_message,
    telling_commits,
)
from tests.wings.autoexplore.written import write_shop

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ENTRY = RepoEntry("shop", "", "/somewhere", "MIT", "train")


def git(root: Path, *words: str) -> None:
    name = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *name, "-C", str(root), *words], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with two telling commits, and others that are not."""
    root = write_shop(tmp_path / "clone")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "Begin to keep a shop in order")
    for path, message in (
        ("shop/recipes.py", "fix: wrong tax of a recipe without a number (#12)"),
        ("shop/tickets.py", "Return the archived ticket from the cupboard first"),
        ("shop/parcels.py", "typo"),
        ("README.md", "Explain how reminders are sent to late payers"),
        ("shop/odd\nname.py", "Compute odd taxes of the odd things"),
    ):
        with (root / path).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        git(root, "add", ".")
        git(root, "commit", "-qm", message)
    (root / "shop" / "gardens.py").write_text("x = 1\n", encoding="utf-8")
    (root / "shop" / "engines.py").write_text("x = 1\n", encoding="utf-8")
    git(root, "commit", "-qam", "Keep gardens and engines in one place")
    return root


@needs_git
def test_commits_of_one_source_file_that_say_what_for(clone: Path) -> None:
    assert [(commit.path, commit.message) for commit in telling_commits(clone)] == [
        ("shop/tickets.py", "Return the archived ticket from the cupboard first"),
        ("shop/recipes.py", "fix: wrong tax of a recipe without a number (#12)"),
    ]


@needs_git
def test_each_is_asked_about_its_parents_tree(clone: Path, tmp_path: Path) -> None:
    assert is_clone(clone) and not is_clone(tmp_path)
    asked = commit_questions(ENTRY, clone, tmp_path / "repos", 5, 0)
    assert len(asked.trees) == len(asked.questions) == 2
    for tree, question in zip(asked.trees, asked.questions, strict=True):
        assert (question.repo, question.source, question.licence) == (tree.name, "commit", "MIT")
        assert tree.split == "train" and tree.name.startswith("shop@")
        (path,) = question.gold
        text = (tmp_path / "repos" / tree.name / path).read_text(encoding="utf-8")
        assert "# changed" not in text and not (tmp_path / "repos" / tree.name / ".git").exists()
    assert len(commit_questions(ENTRY, clone, tmp_path / "one", 1, 0).trees) == 1
    assert {path.name for path in (tmp_path / "one").iterdir()} <= {tree.name for tree in asked.trees}


@needs_git
def test_what_a_clone_configures_is_not_run(clone: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {witness}\n", encoding="utf-8")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "diff.external", "core.sshCommand"):
        git(clone, "config", key, str(program))
    git(clone, "config", "log.showSignature", "false")
    commit_questions(ENTRY, clone, tmp_path / "repos", 5, 0)
    assert not witness.exists()


@needs_git
def test_a_damaged_clone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with pytest.raises(UserError, match=r"its \.git has no readable commit"):
        commit_questions(ENTRY, tmp_path, tmp_path / "repos", 5, 0)


@pytest.mark.parametrize(
    ("message", "telling"),
    [
        ("Keep connections open between requests", True),
        ("feat(web): keep connections open between requests (#3)", True),
        ("Bump the version of the connection pool", False),
        ("Merge branch main into the other branch", False),
        ("fix it", False),
        ("Fixed #123 -- Kept connections open between requests.", True),
        (" ".join(["word"] * 40), False),
    ],
)
def test_telling_messages(message: str, telling: bool) -> None:
    assert is_telling(message) == telling


def test_questions_of_messages() -> None:
    rng = random.Random(0)
    wanted = question_of_message("feat: allow several parcels per customer (#7)", rng)
    assert wanted is not None and "parcels" in wanted and "#7" not in wanted and wanted.endswith("?")
    fixed = question_of_message("Fix the endless loop in the archive of parcels", rng)
    assert fixed is not None and "loop in the archive" in fixed and "Fix" not in fixed
    assert question_of_message("Parcels!", rng) is None
