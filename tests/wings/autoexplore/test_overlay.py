"""Sessions that write: in memory only, and exported as patches that git applies."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.types import UserError
from reflectrl.wings.autoexplore.filters import Filters
from reflectrl.wings.autoexplore.overlay import LARGEST, Overlay
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text, Unreadable

FILES = {
    "app.py": "one\ntwo\nthree\nfour\n",
    "src/run.sh": "#!/bin/sh\necho hello\n",
    "src/no end.txt": "a line without an end",
    "src/deep/old.txt": "line\r\nwith carriage\x0creturns\u2028in it\r\n",
    "empty.txt": "",
    'odd "quoted"\n\\name é.txt': "an odd name\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (tmp_path / "repo" / "src" / "run.sh").chmod(0o755)
    (tmp_path / "repo" / ".hidden").write_text("something hidden")
    (tmp_path / "repo" / "latin.txt").write_bytes("schöne Grüße aus dem Süden".encode("latin-1"))
    return tmp_path / "repo"


@pytest.fixture
def overlay(root: Path) -> Overlay:
    return Overlay(Repository.open(root, Filters(non_ascii=False, min_characters=0)))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def applied(overlay: Overlay, root: Path, to: Path) -> dict[str, bytes]:
    """The files of a copy to which git has applied the patch, without a word of complaint."""
    shutil.copytree(root, to, dirs_exist_ok=True)
    command = ["git", "apply", "--whitespace=nowarn", "--allow-empty", "-"]
    done = subprocess.run(command, cwd=to, input=overlay.patch().encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b""), overlay.patch()
    return contents(to)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")


def test_what_is_written_is_read_back_and_the_original_stays(overlay: Overlay, root: Path) -> None:
    before = contents(root)
    overlay.write("app.py", "new")
    overlay.write("new/file.py", "also new")
    overlay.delete("empty.txt")
    overlay.rename("src/deep/old.txt", "src/deep/young.txt")
    assert overlay.read("app.py") == Text("new") and overlay.read("app.py", 2) == Text("ne", False)
    assert isinstance(overlay.read("empty.txt"), Unreadable)
    assert overlay.folder("new").files == ("file.py",)
    assert overlay.folder("src/deep").files == ("young.txt",)
    assert [(change.path, change.kind) for change in overlay.changes] == [
        ("app.py", "modified"),
        ("empty.txt", "deleted"),
        ("new/file.py", "added"),
        ("src/deep/old.txt", "deleted"),
        ("src/deep/young.txt", "added"),
    ]
    assert contents(root) == before
    assert overlay.repository.read("app.py") == Text(FILES["app.py"])


def test_changing_back_is_no_change(overlay: Overlay) -> None:
    overlay.write("app.py", "new")
    overlay.rename("app.py", "other.py")
    overlay.rename("other.py", "app.py")
    overlay.write("app.py", FILES["app.py"])
    overlay.delete("src/run.sh")
    overlay.write("src/run.sh", "x")
    overlay.write("passing.txt", "by")
    overlay.delete("passing.txt")
    assert [change.path for change in overlay.changes] == ["src/run.sh"]


@needs_git
def test_git_applies_the_patch(overlay: Overlay, root: Path, tmp_path: Path) -> None:
    assert overlay.patch() == ""
    overlay.write("app.py", "one\n2\nthree\nfour\nfive")
    overlay.write("src/run.sh", "#!/bin/sh\necho goodbye\n")
    overlay.rename("src/run.sh", "walk here.sh")
    overlay.write("src/no end.txt", "a line without an end\nand one more\n")
    overlay.write("src/deep/old.txt", FILES["src/deep/old.txt"] + "\r\r\nmore")
    overlay.rename('odd "quoted"\n\\name é.txt', "even\todder\x01 ü.txt")
    overlay.delete("empty.txt")
    overlay.write("empty.txt/inside.txt", "a folder in the place of a file\n")
    overlay.write("nothing", "")
    found = applied(overlay, root, tmp_path / "copy")
    assert {name: data.decode() for name, data in found.items() if name not in (".hidden", "latin.txt")} == {
        name: file.text for name in overlay.files if name != "latin.txt" and (file := overlay.read(name))
    }
    assert (tmp_path / "copy" / "walk here.sh").stat().st_mode & 0o100
    assert not (tmp_path / "copy" / "app.py").stat().st_mode & 0o100


LINES = st.lists(
    st.sampled_from(["a\n", "b\n", "\n", "\r\n", "c\r", "+x\n", "-x\n", "\\ y\n", "\u2028\n", "tail"])
).map("".join)


@needs_git
@settings(max_examples=40, deadline=None)
@given(before=LINES, after=LINES)
def test_any_change_of_lines_can_be_applied(tmp_path_factory: pytest.TempPathFactory, before: str, after: str) -> None:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "repo").mkdir()
    (folder / "repo" / "f.txt").write_bytes(before.encode())
    overlay = Overlay(Repository.open(folder / "repo", Filters(min_characters=0)))
    overlay.write("f.txt", after)
    assert applied(overlay, folder / "repo", folder / "copy") == {"f.txt": after.encode()}


@pytest.mark.parametrize(
    "path",
    [
        "", "/", ".", "..", "../x", "/etc/passwd", "src/../../x", "src//x", "src/", "./x", "a\0b", ".git/config",
        ".GIT/x", "src/.git/hooks/x", "n" * 256, "\ud800", "app.py/x", "src", "src/deep", ".hidden", ".hidden/x",
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_one_line(overlay: Overlay, path: str) -> None:
    for change in (lambda: overlay.write(path, "x"), lambda: overlay.rename("empty.txt", path)):
        with pytest.raises(UserError) as error:
            change()
        assert str(error.value).isprintable()
    assert overlay.changes == []


def test_what_is_not_text_cannot_be_changed(overlay: Overlay) -> None:
    for text in ("a\0b", "\ud800"):
        with pytest.raises(UserError, match="not text"):
            overlay.write("new.txt", text)
    with pytest.raises(UserError, match="not UTF-8"):
        overlay.delete("latin.txt")
    with pytest.raises(UserError, match="too large"):
        overlay.write("new.txt", "é" * (LARGEST // 2 + 1))
    with pytest.raises(UserError, match="no file"):
        overlay.delete("missing.txt")
    assert overlay.changes == []


def test_a_file_that_is_too_large_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_text("x" * (LARGEST + 1))
    with pytest.raises(UserError, match="too large"):
        Overlay(Repository.open(tmp_path)).write("large.txt", "small")


def test_a_session_holds_so_much(root: Path) -> None:
    overlay = Overlay(Repository.open(root), most_bytes=10)
    overlay.write("a", "x" * 6)
    overlay.write("a", "x" * 10)
    with pytest.raises(UserError, match="too much"):
        overlay.write("b", "x")


def test_a_file_that_changes_underneath_cannot_be_changed(overlay: Overlay, root: Path) -> None:
    (root / "app.py").write_text("something else")
    with pytest.raises(UserError, match="changed since"):
        overlay.write("app.py", "x")


def test_the_patch_is_saved_to_a_new_file_only(overlay: Overlay, root: Path, tmp_path: Path) -> None:
    overlay.write("app.py", "new\n")
    overlay.save_patch(tmp_path / "my.patch")
    assert (tmp_path / "my.patch").read_text() == overlay.patch() != ""
    for taken in (tmp_path / "my.patch", root / "app.py", tmp_path / "no" / "folder", "a\0b"):
        with pytest.raises(UserError, match="cannot be saved"):
            overlay.save_patch(taken)
    assert (root / "app.py").read_text() == FILES["app.py"]
