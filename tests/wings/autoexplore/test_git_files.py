"""Files that can be handed out, against git's own list of them."""

import codecs
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import OTHER_CHECKOUT, TOO_MANY_RULES, Filters, Walk, index, is_text
from reflectrl.wings.autoexplore.locate.live import LiveIndex
from reflectrl.wings.autoexplore.locate.originals import Originals
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.sandbox import Sandbox
from tests.wings.autoexplore.gits import FOLDERS, STEPS, git, listed, make

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is what we compare with")
AS_GIT = Filters(outside=True, hidden=False, tests=False, non_ascii=False, min_characters=0)


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings of git; return the place of the user's own rules."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    (home / ".config" / "git").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    return home / ".config" / "git" / "ignore"


def texts(root: Path, paths: set[str]) -> set[str]:
    return {path for path in paths if is_text((root / path).read_bytes())}


def assert_handed_out(root: Path, expected: set[str]) -> None:
    """Compare what can be read with the files' bytes, piece by piece, and everything else on the disk with nothing."""
    originals = Originals(root)
    for path in expected:
        data = (root / path).read_bytes()
        utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        try:
            text = data.decode("utf-16" if utf16 else "utf-8")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        assert whole(originals, path) == text
        assert originals.passage(shown(path)).path == path or shown(path) in expected
    for folder, _, names in os.walk(root):
        for name in names:
            path = (Path(folder) / name).relative_to(root).as_posix()
            if path not in expected:
                with pytest.raises(UserError):
                    originals.passage(path)


def whole(originals: Originals, path: str) -> str:
    """Read a file piece by piece."""
    text, position = "", (1, 1)
    while True:
        passage = originals.passage(path, position[0], column=position[1])
        text += passage.text
        if passage.next is None:
            return text
        text += "\n" * (passage.next[1] == 1)
        position = passage.next


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, below=FOLDERS)
def test_the_files_are_those_that_git_lists(steps: list[Any], below: str) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        home = Path(place).resolve() / "home"
        (home / "git").mkdir(parents=True)
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home))
        root = home.parent / "repo"
        make(root, home / "git" / "ignore", steps)
        expected = texts(root, listed(root))
        assert set(index(Sandbox(root), AS_GIT).files) == expected
        assert_handed_out(root, {path for path in expected if ".gitignore" not in path})
        inner = {path.removeprefix(below + "/") for path in expected if path.startswith(below + "/")}
        if inner:
            assert set(index(Sandbox(root / below), AS_GIT).files) == inner


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def found(root: Path) -> set[str]:
    """Return the visible files that `locate` may hand out."""
    return set(index(Sandbox(root), replace(AS_GIT, hidden=True)).files)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main", ".")
    return write(root, {"packages/api/herd.py": "stripes\n", "packages/api/prod.secret.yaml": "password: hunter2\n"})


def test_rules_above_a_sub_folder_count(repo: Path) -> None:
    """However deep the folder is, and whether rules are anchored or not."""
    for place, rule in (
        (".gitignore", "*.secret.yaml"),
        (".gitignore", "/packages/*/prod*"),
        ("packages/.gitignore", "/api/p*"),
    ):
        write(repo, {place: rule + "\n"})
        assert found(repo / "packages" / "api") == {"herd.py"}
        assert found(repo / "packages") == {"api/herd.py"}
        (repo / place).unlink()
    assert len(found(repo / "packages")) == 2


def test_an_ignored_folder_that_the_user_names_is_searched(repo: Path) -> None:
    write(repo, {".gitignore": "packages/\n*.yaml\n"})
    walk = Walk(AS_GIT)
    assert len(walk.everything(Sandbox(repo / "packages"), lambda path: None).files) == 2
    [remark] = walk.remarks
    assert "is ignored by the git repository" in remark


@pytest.mark.parametrize(
    "rules",
    [
        "".join(f"name{n}\n" for n in range(5000)) + "*.secret.yaml\n",
        "".join(f"*.ending{n}\n" for n in range(5000)) + "*.secret.yaml\n",
        "".join(f"a*b{n}\n" for n in range(2000)) + "prod.*.yaml\n",
        "# " + "-" * 100_000 + "\nprod.secret.yaml\n",
        "**/".join(["packages/", "**/api/", "prod.secret.*\n"]) + "packages/**/api/**/**/prod.s*\n",
    ],
)
def test_any_number_of_rules_counts(repo: Path, rules: str) -> None:
    write(repo, {".gitignore": rules})
    assert found(repo) == {"packages/api/herd.py"}


def test_where_rules_are_too_many_everything_is_left_out(repo: Path) -> None:
    write(repo, {"kept.py": "some text\n", "packages/.gitignore": "".join(f"a*{n}*b\n" for n in range(10_001))})
    indexed = index(Sandbox(repo), AS_GIT)
    assert set(indexed.files) == {"kept.py"} and TOO_MANY_RULES in indexed.left_out
    write(repo, {"packages/.gitignore": "a" * (16 * 2**20 + 1)})
    assert set(index(Sandbox(repo), AS_GIT).files) == {"kept.py"}


def test_info_exclude_counts_also_in_a_worktree_and_below(repo: Path, tmp_path: Path) -> None:
    write(repo, {".git/info/exclude": "*.secret.yaml\n", "kept.py": "some text\n"})
    assert found(repo) == {"kept.py", "packages/api/herd.py"}
    assert found(repo / "packages") == {"api/herd.py"}
    git(repo, "commit", "-q", "--allow-empty", "-m", "x")
    git(repo, "worktree", "add", "-q", str(tmp_path / "beside"))
    write(tmp_path / "beside", {"b.secret.yaml": "password: hunter2\n", "b.py": "some text\n"})
    assert found(tmp_path / "beside") == {"b.py"}


@pytest.mark.parametrize(
    "config",
    [
        "[core]\n\texcludesFile = ~/ignored  ; the rules\n",
        '[CORE]\nexcludesfile="~/ignored"\n',
        "[user]\n name = a\n[core] excludesFile = \\\n ~/ignored\n",
        "[include]\n path = ~/further\n",
    ],
)
def test_the_users_own_rules_count(repo: Path, user: Path, config: str) -> None:
    home = user.parents[2]
    write(home, {"further": "[core]\n excludesFile = ~/ignored\n", "ignored": "*.secret.yaml\n"})
    for place in (".gitconfig", ".config/git/config"):
        assert len(found(repo)) == 2
        write(home, {place: config})
        assert found(repo) == {"packages/api/herd.py"}, place
        (home / place).unlink()
    write(home, {".config/git/ignore": "*.secret.yaml\n"})
    assert found(repo / "packages") == {"api/herd.py"}


def test_a_repositorys_own_setting_is_read_only_near(repo: Path, tmp_path: Path) -> None:
    write(repo, {"rules": "*.secret.yaml\nrules\n"})
    write(tmp_path, {"elsewhere": "*\n"})
    git(repo, "config", "core.excludesFile", "rules")
    assert found(repo) == {"packages/api/herd.py"}
    git(repo, "config", "core.excludesFile", str(tmp_path / "elsewhere"))
    walk = Walk(AS_GIT)
    assert len(walk.everything(Sandbox(repo), lambda path: None).files) == 3
    assert "elsewhere" in str(walk.remarks)


def test_an_environment_depends_on_nothing_outside_its_folder(repo: Path, user: Path) -> None:
    """Otherwise the same episode would be another one on another machine."""
    write(repo, {".gitignore": "*.secret.yaml\n"})
    user.write_text("*.py\n")
    assert set(index(Sandbox(repo / "packages"), Filters(min_characters=0)).files) == {
        "api/herd.py",
        "api/prod.secret.yaml",
    }


def test_other_worktrees_are_left_out_and_those_of_a_bare_repository_are_not(repo: Path, tmp_path: Path) -> None:
    git(repo, "add", "packages/api/herd.py")
    git(repo, "commit", "-q", "-m", "x")
    for name in ("copies/one", "packages/two"):
        git(repo, "worktree", "add", "-q", "--detach", name)
    git(repo, "worktree", "add", "-q", "--detach", str(repo / "copies/moved"))
    write(repo, {"copies/moved/.git": "gitdir: /nowhere/.git/worktrees/moved\n"})
    assert found(repo) == {"packages/api/herd.py", "packages/api/prod.secret.yaml"}
    assert index(Sandbox(repo), AS_GIT).left_out[OTHER_CHECKOUT] == 3
    assert found(repo / "packages") == {"api/herd.py", "api/prod.secret.yaml"}
    assert found(repo / "copies" / "one") == {"packages/api/herd.py"}
    bare = tmp_path / "project"
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(bare / ".bare"))
    git(bare / ".bare", "worktree", "add", "-q", str(bare / "main"), "main")
    assert found(bare) == {"main/packages/api/herd.py"}


def test_what_belongs_to_git_is_no_root(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(tmp_path / "bare.git"))
    for folder in (repo / ".git", repo / ".git" / "hooks", tmp_path / "bare.git", tmp_path / "bare.git" / "refs"):
        with pytest.raises(UserError, match="belongs to git|bare git repository") as error:
            index(Sandbox(folder), AS_GIT)
        assert "\n" not in str(error.value)


def test_a_folder_that_only_looks_like_a_repository_resets_no_rule(repo: Path, tmp_path: Path) -> None:
    write(repo, {".gitignore": "*.secret.yaml\n"})
    for kind in ("empty", "file", "link", "elsewhere"):
        inner = repo / "packages" / kind
        write(inner, {"a.secret.yaml": "password: hunter2\n", "a.py": "some text\n"})
        if kind == "empty":
            (inner / ".git").mkdir()
        elif kind == "file":
            (inner / ".git").write_text("gitdir: nowhere\n")
        elif kind == "link":
            (inner / ".git").symlink_to(repo / ".git")
        else:
            git(tmp_path, "init", "-q", "other")
            (inner / ".git").write_text(f"gitdir: {tmp_path}/other/.git\n")
        assert f"packages/{kind}/a.py" in found(repo)
    assert not any("secret" in path for path in found(repo))


@pytest.mark.parametrize(
    "target", ["n" * 300, "/n" * 5000, "a\0b", "../repo/.git", "loop", "\udcff", "", "/dev/zero", "pipe"]
)
def test_a_strange_repository_is_an_ordinary_folder(tmp_path: Path, target: str) -> None:
    root = write(tmp_path / "repo", {"a.py": "some text\n", "inner/b.py": "some text\n", ".gitignore": "*.log\n"})
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    for folder in (root, root / "inner"):
        (folder / ".git").write_bytes(os.fsencode(f"gitdir: {target}\n"))
    assert found(root) == {"a.py", "inner/b.py"}


@pytest.mark.parametrize("name", ["HEAD", "index", "config", "info/exclude", "commondir"])
def test_a_pipe_or_a_circle_among_gits_files_does_no_harm(repo: Path, name: str) -> None:
    for make_it in (os.mkfifo, lambda path: path.symlink_to(path), Path.mkdir):
        (repo / ".git" / name).unlink(missing_ok=True)
        make_it(repo / ".git" / name)
        assert "packages/api/herd.py" in found(repo) and found(repo / "packages")
        if (repo / ".git" / name).is_dir():
            return
        (repo / ".git" / name).unlink()


def test_a_server_notices_rules_that_the_kernel_does_not_report(repo: Path, user: Path) -> None:
    live = LiveIndex(repo / "packages", cached=False, watched=True)
    secret, other = "api/prod.secret.yaml", "api/herd.py"
    write(repo / "packages", {"api/herd.py": "stripes of zebras\n"})

    def paths() -> list[str]:
        live.refresh()
        return live.corpus.paths

    for place in (repo / ".gitignore", repo / ".git/info/exclude", user):
        assert paths() == [other, secret]
        place.write_text("*.secret.yaml\n")
        assert paths() == [other]
        place.unlink()
    (repo / ".gitignore").write_text("*.secret.yaml\n")
    assert paths() == [other]
    git(repo, "add", "-f", "packages/api/prod.secret.yaml")
    assert paths() == [other, secret]  # tracked files belong to the repository, whatever the rules say


def test_a_damaged_list_of_tracked_files_leaves_out(repo: Path) -> None:
    write(repo, {".gitignore": "*.secret.yaml\n"})
    git(repo, "add", "-f", ".")
    assert len(found(repo)) == 2
    whole = (repo / ".git/index").read_bytes()
    for data in (whole[:20], whole[:100], b"DIRC" + b"\xff" * 100, whole.replace(b"prod", b"pr\0d"), b""):
        (repo / ".git/index").write_bytes(data)
        assert found(repo) == {"packages/api/herd.py"}
