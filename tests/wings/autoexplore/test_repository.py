"""The view of a repository: what is listed, what is read, and what a user hears who is mistaken."""

import os
import pickle
import sys
from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import HEAD, Filters, is_text
from reflectrl.wings.autoexplore.names import Folder, tree
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text, TextCache, Unreadable

KEEP_ALL = Filters(ignored=False, hidden=False, tests=False, binaries=False, non_ascii=False, min_characters=0)


def fill(root: Path, *names: str, text: str = "a text that is long enough\n") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_folders_and_files_are_listed_in_order(tmp_path: Path) -> None:
    fill(tmp_path, "b.py", "a.py", "src/z/y.py", "src/a.py", "only/hidden/.x")
    repository = Repository.open(tmp_path)
    assert list(repository) == list(repository.files) == ["a.py", "b.py", "src/a.py", "src/z/y.py"]
    assert repository.folder("") == Folder("", ("src",), ("a.py", "b.py"))
    assert repository.folder("src") == Folder("src", ("z",), ("a.py",))
    assert list(repository.folders) == ["", "src", "src/z"]
    assert "src/a.py" in repository and "src" not in repository and len(repository) == 4
    assert repository.size("a.py") == 27 and repository.root == tmp_path.resolve()


def test_a_tree_has_every_folder_above_a_file() -> None:
    assert tree([]) == {"": Folder("", (), ())}
    assert tree(["a/b/c/d"]).keys() == {"", "a", "a/b", "a/b/c"}


@pytest.mark.parametrize(
    ("switch", "names", "reason"),
    [
        ("ignored", ["ignored.py", "build/x.py"], "ignored by git"),
        ("hidden", [".env", ".github/x.yml"], "hidden"),
        ("tests", ["tests/x.py", "test_a.py", "a_test.go", "a.spec.ts", "conftest.py", "x/Test/a.java"], "a test"),
        ("non_ascii", ["é.py", "größe/x.py", "a\nb.py"], "not named in ASCII"),
    ],
)
def test_each_filter_can_be_switched_off(tmp_path: Path, switch: str, names: list[str], reason: str) -> None:
    fill(tmp_path, "kept.py", "latest.py", "testing/contest.py", *names)
    fill(tmp_path, ".gitignore", text="ignored.py\nbuild/\n")
    kept = {"kept.py", "latest.py", "testing/contest.py"}
    repository = Repository.open(tmp_path)
    assert set(repository) == kept
    assert repository.left_out[reason] >= len(names) - 1
    with_them = set(Repository.open(tmp_path, Filters(**{switch: False})))
    assert with_them == kept.union(names, {".gitignore"} if switch == "hidden" else ())


def test_binaries_and_short_files_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "kept.py")
    (tmp_path / "x.bin").write_bytes(b"PNG\0" * 10)
    (tmp_path / "short").write_text("  123456789  ")
    (tmp_path / "just").write_text("ü" * 10)
    assert set(Repository.open(tmp_path)) == {"kept.py", "just"}
    everything = Repository.open(tmp_path, Filters(binaries=False, min_characters=0))
    assert set(everything) == {"kept.py", "just", "short", "x.bin"}
    assert everything.read("x.bin") == Unreadable("it is a binary file")


def test_gits_own_folder_is_never_shown(tmp_path: Path) -> None:
    fill(tmp_path, "kept.py", ".git/config", "sub/.git")
    assert set(Repository.open(tmp_path, KEEP_ALL)) == {"kept.py"}


def test_links_and_pipes_are_told_from_files_without_opening_them(tmp_path: Path) -> None:
    fill(tmp_path, "kept.py", "src/kept.py")
    os.mkfifo(tmp_path / "pipe.py")
    for name, target in (("file.py", "kept.py"), ("folder", "src"), ("out", ".."), ("gone", "nowhere")):
        (tmp_path / name).symlink_to(target)
    repository = Repository.open(tmp_path, KEEP_ALL)
    assert repository.files == ("kept.py", "src/kept.py")
    assert repository.left_out == {"a link": 4, "a device, pipe or socket": 1}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", True),
        (b"plain", True),
        ("größe 文件".encode(), True),
        ("schöne Grüße aus dem Süden".encode("latin-1"), True),
        (b"\x1b[31mred\x1b[0m\n", True),
        ("utf sixteen".encode("utf-16"), True),
        ("utf thirty-two".encode("utf-32"), False),
        (bytes(range(1, 256)), False),
        (b"\x01\x02\x03abc", False),
        (b"x" * HEAD + b"\0", True),
    ],
)
def test_text_is_told_from_binaries(data: bytes, text: bool) -> None:
    assert is_text(data) is text


def test_reading_stops_at_the_limit_and_between_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ää" * 10, encoding="utf-8")
    repository = Repository.open(tmp_path)
    assert repository.read("a.txt") == Text("ää" * 10)
    assert repository.read("a.txt", 5) == Text("ää", complete=False)
    assert repository.read("a.txt", 40) == Text("ää" * 10)
    assert repository.read("a.txt", 0) == Text("", complete=False)


def test_other_encodings_are_read_with_marks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße an alle".encode("latin-1"))
    assert Repository.open(tmp_path).read("a.txt") == Text("Gr\ufffd\ufffde an alle")


def test_the_cache_keeps_what_was_used_last_within_its_limit() -> None:
    text = Text("x" * 1000)
    cache = TextCache(3 * sys.getsizeof(text.text))
    for key in ("a", "b", "c", "a"):
        cache.put(key, text)
    assert cache.get("b") is text
    cache.put("d", text)
    assert [key for key in "abcd" if cache.get(key)] == ["a", "b", "d"] and cache.size == cache.limit
    cache.put("huge", Text("x" * 10_000))
    assert cache.size <= cache.limit and cache.get("huge") is None


def test_a_text_is_read_from_disk_once(tmp_path: Path) -> None:
    repository = Repository.open(fill(tmp_path, "a.py"))
    first = repository.read("a.py")
    (tmp_path / "a.py").unlink()
    assert repository.read("a.py") is first
    assert pickle.loads(pickle.dumps(repository)).read("a.py") == Unreadable("it is not there any more")  # noqa: S301


def test_a_copy_for_another_process_shows_the_same(tmp_path: Path) -> None:
    repository = Repository.open(fill(tmp_path, "a.py", "src/b.py"))
    copy = pickle.loads(pickle.dumps(repository))  # noqa: S301
    assert copy.files == repository.files and copy.folder("src") == repository.folder("src")
    assert copy.read("src/b.py") == repository.read("src/b.py")


def swap(path: Path, how: str, outside: Path) -> None:
    """Put something else in the place of a file."""
    if how == "longer":
        path.write_text("a text that is quite a bit longer\n")
        return
    if how == "as long":
        path.write_text("other text, just as many...\n"[-27:])
        os.utime(path, ns=(1, 1))
        return
    path.unlink()
    if how == "link":
        path.symlink_to(outside)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("longer", "it has changed since the repository was opened"),
        ("as long", "it has changed since the repository was opened"),
        ("gone", "it is not there any more"),
        ("link", "it is a link now"),
        ("pipe", "not a regular file"),
        ("folder", "not a regular file"),
    ],
)
def test_a_file_that_is_swapped_underneath_is_not_read(tmp_path: Path, how: str, reason: str) -> None:
    outside = fill(tmp_path, "secret.txt") / "secret.txt"
    repository = Repository.open(fill(tmp_path / "repo", "src/a.py"))
    swap(tmp_path / "repo" / "src" / "a.py", how, outside)
    assert repository.read("src/a.py") == Unreadable(reason)


@pytest.mark.parametrize("place", ["repo/src", "repo"])
def test_a_folder_that_is_swapped_for_a_link_is_not_entered(tmp_path: Path, place: str) -> None:
    fill(tmp_path / "other", "src/a.py", "a.py")
    repository = Repository.open(fill(tmp_path / "repo", "src/a.py"))
    (tmp_path / place).rename(tmp_path / "moved")
    (tmp_path / place).symlink_to(tmp_path / "other")
    assert isinstance(repository.read("src/a.py"), Unreadable)
    (tmp_path / place).unlink()
    (tmp_path / "other").rename(tmp_path / place)
    assert isinstance(repository.read("src/a.py"), Unreadable)


def test_a_root_may_be_named_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "repo", "a.py")
    (tmp_path / "link").symlink_to("repo")
    for name in (tmp_path / "link", tmp_path / "repo" / ".." / "repo", f"{tmp_path}/repo//"):
        assert Repository.open(name).root == (tmp_path / "repo").resolve()
    monkeypatch.chdir(tmp_path / "repo")
    assert Repository.open(".").files == ("a.py",)


@pytest.mark.parametrize(
    "path", ["", "src", "src/", "/a.py", "./a.py", "src/../a.py", "../repo/a.py", "a.py\0", "b.py"]
)
def test_only_paths_that_were_listed_are_read(tmp_path: Path, path: str) -> None:
    repository = Repository.open(fill(tmp_path / "repo", "a.py", "src/x.py"))
    assert repository.read(path) == Unreadable("there is no such file")
    for asked in (repository.size, lambda name: repository.folder(f"{name}/x")):
        with pytest.raises(UserError, match="there is no f"):
            asked(path)


def mistaken(path: Path | str) -> str:
    with pytest.raises(UserError) as error:
        Repository.open(path)
    assert str(error.value).isprintable()
    return str(error.value)


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    fill(tmp_path / "project", "a.py")
    assert f"(did you mean '{tmp_path}/project'?)" in mistaken(tmp_path / "projetc")
    assert "there is no folder" in mistaken(tmp_path / "no" / "such" / "place")
    assert "is a file" in mistaken(tmp_path / "project" / "a.py")
    assert "cannot be opened" in mistaken("a\0b")
    assert "cannot be opened" in mistaken(tmp_path / ("n" * 5000))
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be opened" in mistaken(tmp_path / "loop")


def test_nothing_to_explore_is_said_with_the_reasons(tmp_path: Path) -> None:
    assert "it is empty" in mistaken(tmp_path)
    (tmp_path / "only empty\nfolders").mkdir()
    assert "no file to explore" in mistaken(tmp_path)
    fill(tmp_path, ".hidden")
    for name in ("a.png", "b.so"):
        (tmp_path / name).write_bytes(b"\0" * 100)
    assert "left out are 2 (binary), 1 (hidden)" in mistaken(tmp_path)


def test_what_cannot_be_a_repository_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, *(f"{i}.py" for i in range(10)))
    monkeypatch.setattr("reflectrl.wings.autoexplore.index.MOST_ENTRIES", 9)
    assert "more than 9 files" in mistaken(tmp_path)
