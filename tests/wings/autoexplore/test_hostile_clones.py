"""No repository of a stranger's runs a program when its commits are read, or has another repository read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.git import Commits, head_of
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.library import RepoEntry
from reflectrl.wings.autoexplore.making.commits import commit_questions, telling_commits
from tests.wings.autoexplore.written import write_shop
from tests.wings.hostile_files import CONFIG, ENVIRONMENT, PLACES, settings_of

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
ENTRY = RepoEntry("shop", "", "/somewhere", "MIT", "train")
ATTRIBUTES = "* filter=evil diff=evil merge=evil text ident\nshop/recipes.py export-subst\nREADME.md export-ignore\n"
FORMAT = "# $Format:%G? %GK %H$\n"
MESSAGE = "Return the archived ticket from the cupboard first"


def git(root: Path, *words: str, given: bytes = b"") -> bytes:
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *settings, "-C", str(root), *words], check=True, capture_output=True, input=given
    ).stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with attributes for everything, a placeholder for archives, and commits that bear signatures."""
    root = write_shop(tmp_path_factory.mktemp("clones") / "shop")
    git(root, "init", "-q")
    (root / ".gitattributes").write_text(ATTRIBUTES)
    with (root / "shop/recipes.py").open("a") as file:
        file.write(FORMAT)
    git(root, "add", ".")
    git(root, "commit", "-qm", "Begin to keep a shop in order")
    with (root / "shop/tickets.py").open("a") as file:
        file.write("# changed\n")
    git(root, "commit", "-qam", MESSAGE)
    commit = git(root, "cat-file", "commit", "HEAD").replace(
        b"\n\n", b"\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ==\n -----END PGP SIGNATURE-----\n\n", 1
    )
    signed = git(root, "hash-object", "-t", "commit", "-w", "--literally", "--stdin", given=commit).decode().strip()
    git(root, "update-ref", "HEAD", signed)
    return root


@pytest.fixture
def theirs(clone: Path, tmp_path: Path) -> Path:
    """The same as a stranger's folder, beside a program that leaves a mark, and hooks that do."""
    root = Path(shutil.copytree(clone, tmp_path / "shop"))
    marker = tmp_path / "marker"
    marker.write_text(f'#!/bin/sh\ntouch "{tmp_path}/MARK"\nexit 1\n')
    marker.chmod(0o755)
    (tmp_path / "hooks").mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"):
        shutil.copy(marker, tmp_path / "hooks" / name)
        (root / ".git/hooks").mkdir(exist_ok=True)
        shutil.copy(marker, root / ".git/hooks" / name)
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/attributes").write_text("* filter=evil diff=evil\n")
    (tmp_path / "evil.config").write_text(f"[core]\nfsmonitor = {marker}\npager = {marker}\n[gpg]\nprogram = {marker}\n"
                                          "[log]\nshowSignature = true\n")  # fmt: skip
    (root / "evil.config").write_text((tmp_path / "evil.config").read_text())
    (root / ".git/config.worktree").write_text((tmp_path / "evil.config").read_text())
    (tmp_path / "evil.attributes").write_text(ATTRIBUTES)
    return root


def asked(root: Path) -> int:
    """Questions that come of a clone's commits; each is asked about a tree that is the commit's, byte for byte."""
    found = commit_questions(ENTRY, root, root.parent / "repos", 5, 0)
    for tree in found.trees:
        assert (root.parent / "repos" / tree.name / "shop/recipes.py").read_text().endswith(FORMAT)
    return len(found.questions)


@pytest.mark.parametrize("text", CONFIG.values(), ids=CONFIG)
def test_no_configuration_has_an_effect(theirs: Path, text: str) -> None:
    mark, marker, hooks = (theirs.parent / name for name in ("MARK", "marker", "hooks"))
    with (theirs / ".git/config").open("a") as file:
        file.write(f"\n{settings_of(text, marker, mark, hooks)}\n")
    assert asked(theirs) == 1 and not mark.exists()


def test_the_users_own_configuration_has_none_either(theirs: Path, monkeypatch: Any) -> None:
    mark, marker, hooks = (theirs.parent / name for name in ("MARK", "marker", "hooks"))
    text = "\n".join(settings_of(CONFIG[name], marker, mark, hooks) for name in list(CONFIG)[:4])
    (theirs.parent / ".gitconfig").write_text(text)
    monkeypatch.setenv("HOME", str(theirs.parent))
    assert asked(theirs) == 1 and not mark.exists()


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_no_variable_has_an_effect(theirs: Path, monkeypatch: Any, name: str) -> None:
    mark, marker = theirs.parent / "MARK", theirs.parent / "marker"
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(marker))
    monkeypatch.setenv(name, settings_of(ENVIRONMENT[name], marker, mark, mark))
    assert asked(theirs) == 1 and not mark.exists()


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_no_other_repository_is_read(theirs: Path, tmp_path: Path, make: Any) -> None:
    secret = tmp_path / "private"
    secret.mkdir()
    git(secret, "init", "-q")
    for i in range(6):
        (secret / f"secret{i}.py").write_text(f"password = {i}\n")
    git(secret, "add", ".")
    git(secret, "commit", "-qm", "Begin to keep secrets in order")
    (secret / "secret0.py").write_text("password = 7\n")
    git(secret, "commit", "-qam", "Return the secret password from the cupboard first")
    make(theirs, secret)
    try:
        found = commit_questions(ENTRY, theirs, tmp_path / "repos", 5, 0)
        assert all("secret" not in question.question for question in found.questions)
    except UserError as error:
        assert "\n" not in str(error)
    assert not list((tmp_path / "repos").rglob("secret*"))
    assert not list(tmp_path.rglob("MARK"))


def test_the_command_runs_nothing(theirs: Path, tmp_path: Path) -> None:
    mark, marker, hooks = (tmp_path / name for name in ("MARK", "marker", "hooks"))
    sound = [text for name, text in CONFIG.items() if "nonsense" not in name and "not know" not in name]
    with (theirs / ".git/config").open("a") as file:
        file.write("\n".join(["", *(settings_of(text, marker, mark, hooks) for text in sound), ""]))
    words = ["--from", str(theirs), "--store", str(tmp_path / "store"), "--commits", "5", "--split-by", "task"]
    assert main(["data", "autoexplore", *words]) == 0
    assert MESSAGE.split()[-2] in "".join(path.read_text() for path in (tmp_path / "store").rglob("*.jsonl"))
    assert not mark.exists()


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [False, True], ids=["loose", "packed"])
def test_a_tree_is_what_git_itself_would_check_out(clone: Path, tmp_path: Path, pack: bool) -> None:
    root = Path(shutil.copytree(clone, tmp_path / "clone"))
    git(root, "gc", "-q") if pack else None
    with Commits(root) as commits:
        assert commits.head == head_of(root) == git(root, "rev-parse", "HEAD").decode().strip()
        commits.write_tree(commits.head, tmp_path / "tree")
    tracked = git(root, "ls-files", "-z").decode().split("\0")[:-1]
    written = [path.relative_to(tmp_path / "tree") for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    assert sorted(map(str, written)) == sorted(tracked)
    assert all((tmp_path / "tree" / name).read_bytes() == (root / name).read_bytes() for name in tracked)


def test_worktrees_and_shallow_clones_are_read(clone: Path, tmp_path: Path) -> None:
    git(clone, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"), "HEAD")
    assert [commit.message for commit in telling_commits(tmp_path / "tree")] == [MESSAGE]
    git(clone, "worktree", "remove", "--force", str(tmp_path / "tree"))
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{clone}", str(tmp_path / "shallow")], check=True)
    assert list(telling_commits(tmp_path / "shallow")) == []  # the one commit has no parent there


def test_a_tree_that_leads_out_of_its_folder_is_refused(clone: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(clone, tmp_path / "clone"))
    blob = git(root, "hash-object", "-w", "--stdin", given=b"x").decode().strip()
    for name in (b"..", b".git", b"a\\b"):
        inner = b"100644 out\0" + bytes.fromhex(blob)
        folder = git(root, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=inner).decode().strip()
        outer = b"40000 " + name + b"\0" + bytes.fromhex(folder)
        tree = git(root, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=outer).decode().strip()
        with Commits(root) as commits, pytest.raises(UserError, match="leads out of its folder"):
            commits.write_tree(tree, tmp_path / "out" / "tree")
    assert not (tmp_path / "out").exists() and [path.name for path in tmp_path.iterdir()] == ["clone"]
