"""The index that follows a folder by the kernel's reports: it equals a fresh one after whatever happened."""

import errno
import mmap
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore import watching
from reflectrl.wings.autoexplore.locate.answers import Locator
from reflectrl.wings.autoexplore.locate.live import LiveIndex
from reflectrl.wings.autoexplore.sandbox import Sandbox

needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="inotify is a part of Linux")
WORDS = ("apple", "banana", "cherry", "damson", "elder", "fig")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    for folder in ("net", "net/inner", "docs"):
        (root / folder).mkdir(parents=True)
        for number in range(3):
            (root / folder / f"part{number}.py").write_text(f"def step_{number}():\n    return 'word{number}'\n")
    return root


def watched(repo: Path) -> LiveIndex:
    index = LiveIndex(repo, cached=False, watched=True)
    index.refresh()
    return index


def content(index: LiveIndex) -> tuple[object, ...]:
    """What a question can see of an index."""
    words = (*WORDS, "step", "net", "inner", "docs", "moved")
    found = {
        word: [(index.corpus.paths[file], int(n)) for file, n, _ in zip(*index.corpus.find(word), strict=True)]
        for word in words
    }
    texts = {path: file.text for path in index.corpus.paths if (file := index.read(path)) is not None}
    return list(index.corpus.paths), {word: sorted(files) for word, files in found.items()}, texts, dict(index.left_out)


def agrees(index: LiveIndex, repo: Path) -> None:
    """Compare an index with one that is made anew. Both refuse a folder without a file."""
    try:
        fresh = content(LiveIndex(repo, cached=False))
    except UserError as error:
        with pytest.raises(UserError) as refusal:
            index.refresh()
        assert str(refusal.value) == str(error)
        return
    index.refresh()
    assert content(index) == fresh


def opened_folders(index: LiveIndex, monkeypatch: pytest.MonkeyPatch) -> int:
    """Refresh an index, and return the number of folders in which it looked."""
    looks = 0
    follow = watching.Watch.follow

    def counted(self: watching.Watch, descriptor: int, path: str) -> bool:
        nonlocal looks
        looks += 1
        return follow(self, descriptor, path)

    with monkeypatch.context() as patch:
        patch.setattr(watching.Watch, "follow", counted)
        index.refresh()
    return looks


class Edits:
    """Random edits of a folder and of one beside it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.draw = root, random.Random(seed)
        self.outside = root.parent / "outside"
        self.outside.mkdir(exist_ok=True)
        (self.outside / "secret.py").write_text("banana = 'outside of the repository'\n")

    def folders(self) -> list[Path]:
        return [self.root, *(path for path in sorted(self.root.rglob("*")) if path.is_dir() and not path.is_symlink())]

    def entries(self) -> list[Path]:
        return sorted(self.root.rglob("*"))

    def place(self) -> Path:
        name = self.draw.choice(("a.py", "b.md", "c", "sub", "inner", "moved", "part0.py", "__pycache__"))
        return self.draw.choice(self.folders()) / name

    def text(self) -> str:
        return " ".join(self.draw.choices(WORDS, k=5)) + "\n"

    def write(self) -> None:
        place = self.place()
        if not place.is_dir() and not place.is_symlink():
            place.write_text(self.text())

    def rewrite(self) -> None:
        """Change a file and nothing of its stamp."""
        files = [path for path in self.entries() if path.is_file() and not path.is_symlink()]
        if files:
            self.shuffle(self.draw.choice(files))

    def shuffle(self, file: Path) -> None:
        before, data = file.stat(), bytearray(file.read_bytes())
        self.draw.shuffle(data)
        file.write_bytes(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def save_through_rename(self) -> None:
        place = self.place()
        if not place.is_dir():
            new = place.with_name("new.tmp")
            new.write_text(self.text())
            new.rename(place)

    def delete(self) -> None:
        entries = self.entries()
        if entries:
            entry = self.draw.choice(entries)
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def new_tree(self) -> None:
        place = self.place()
        if not place.exists() and not place.is_symlink():
            (place / "deep").mkdir(parents=True)
            (place / "deep" / "leaf.py").write_text(self.text())

    def move(self) -> None:
        """Move a file or a folder, within the repository or out of it and back."""
        entries = self.entries()
        place = self.place()
        if entries and not place.exists() and not place.is_symlink():
            entry = self.draw.choice(entries)
            if entry not in place.parents and entry != place:
                if self.draw.random() < 0.5:
                    aside = self.outside / f"aside{self.draw.random()}"
                    entry.rename(aside)
                    entry = aside
                entry.rename(place)

    def exchange(self) -> None:
        """Put another folder in the place of one."""
        folders = self.folders()[1:]
        if folders:
            folder = self.draw.choice(folders)
            folder.rename(self.outside / f"old{self.draw.random()}")
            folder.mkdir()
            (folder / "part0.py").write_text(self.text())

    def exchange_with_the_same_stamps(self) -> None:
        """Put a copy in the place of a folder, whose files have other contents and the same stamps."""
        folders = self.folders()[1:]
        if folders:
            folder = self.draw.choice(folders)
            copy = self.outside / f"copy{self.draw.random()}"
            shutil.copytree(folder, copy, symlinks=True)
            for file in sorted(path for path in copy.rglob("*") if path.is_file() and not path.is_symlink()):
                self.shuffle(file)
            folder.rename(self.outside / f"old{self.draw.random()}")
            copy.rename(folder)

    def write_aside(self) -> None:
        """Write into a folder that was moved out of the repository."""
        for path in sorted(self.outside.rglob("*.py")):
            if path.is_file() and not path.is_symlink():
                path.write_text(self.text())

    def ignore(self) -> None:
        place = self.draw.choice(self.folders()) / ".gitignore"
        if self.draw.random() < 0.3:
            place.unlink(missing_ok=True)
        else:
            place.write_text(self.draw.choice(("*.md\n", "inner/\n", "moved\n", "a.*\n!a.py\n", "/net\n")))

    def link(self) -> None:
        """Put a link in the place of a file or folder, or where nothing was."""
        place = self.place()
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(self.draw.choice((self.outside, self.outside / "secret.py", Path("missing"))))

    def mode(self) -> None:
        files = [path for path in self.entries() if path.is_file() and not path.is_symlink()]
        if files:
            self.draw.choice(files).chmod(self.draw.choice((0o644, 0o755)))

    def any(self) -> None:
        self.draw.choice(
            (self.write, self.write, self.rewrite, self.save_through_rename, self.delete, self.new_tree, self.move,
             self.move, self.exchange, self.exchange_with_the_same_stamps, self.write_aside, self.ignore, self.link,
             self.mode)
        )()  # fmt: skip


@needs_inotify
@pytest.mark.parametrize("seed", range(6))
def test_after_any_edits_it_equals_a_fresh_index(repo: Path, seed: int) -> None:
    index, edits = watched(repo), Edits(repo, seed)
    for _ in range(25):
        for _ in range(edits.draw.choice((0, 1, 1, 2, 5))):
            edits.any()
        agrees(index, repo)


@needs_inotify
def test_only_what_changed_is_looked_at(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = watched(repo)
    assert opened_folders(index, monkeypatch) == 0
    (repo / "net" / "inner" / "part0.py").write_text("apple = 'a new text'\n")
    assert opened_folders(index, monkeypatch) == 1 and index.indexed == 1
    (repo / "new").mkdir()
    (repo / "new" / "file.py").write_text("banana = 'in a new folder'\n")
    assert opened_folders(index, monkeypatch) == 2 and index.indexed == 1
    (repo / ".gitignore").write_text("part1.py\n")  # may concern every folder
    assert opened_folders(index, monkeypatch) == 5 and index.indexed == 0
    (repo / "net").chmod(0o750)  # may concern everything below
    assert opened_folders(index, monkeypatch) == 3 and index.indexed == 0
    assert opened_folders(index, monkeypatch) == 0
    agrees(index, repo)


@needs_inotify
def test_a_file_with_another_name_elsewhere_is_looked_at_each_time(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = repo.parent / "other.py"
    os.link(repo / "docs" / "part0.py", other)
    index = watched(repo)
    assert opened_folders(index, monkeypatch) == 1
    other.write_text("cherry = 'written through the other name'\n")
    agrees(index, repo)


@needs_inotify
def test_rules_with_another_name_elsewhere_are_read_each_time(repo: Path) -> None:
    (repo / ".gitignore").write_text("*.md\n")
    other = repo.parent / "ignore"
    os.link(repo / ".gitignore", other)
    index = watched(repo)
    other.write_text("part1.py\n")
    agrees(index, repo)
    assert "docs/part1.py" not in index.corpus.paths


@needs_inotify
def test_changes_that_no_folder_is_told_of_are_seen_in_time(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = watched(repo)
    other = repo.parent / "other.py"
    os.link(repo / "docs" / "part0.py", other)  # only now, so that it was not noticed
    other.write_text("cherry = 'written through the other name'\n")
    monkeypatch.setattr(watching, "TRUSTED_SECONDS", 0.0)
    agrees(index, repo)


@needs_inotify
def test_a_write_to_mapped_memory_is_seen_once_it_is_unmapped(repo: Path) -> None:
    index = watched(repo)
    with (repo / "docs" / "part0.py").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        index.refresh()
        memory[:5] = b"apple"
    agrees(index, repo)


@needs_inotify
def test_a_folder_that_could_not_be_opened(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subfolder = Sandbox.subfolder

    def refusing(self: Sandbox, folder: int, name: str):  # type: ignore[no-untyped-def]
        if name == "docs":
            raise OSError(errno.EIO, "a disk that fails for a while")
        return subfolder(self, folder, name)

    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "subfolder", refusing)
        index = LiveIndex(repo, cached=False, watched=True)
        assert index.left_out["unreadable"] == 1 and len(index.corpus) == 6
    agrees(index, repo)
    assert len(index.corpus) == 9


@needs_inotify
def test_a_refresh_that_fails_loses_no_change(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = watched(repo)
    (repo / "docs" / "part0.py").write_text("elder = 'changed'\n")
    with monkeypatch.context() as patch:
        patch.setattr(LiveIndex, "_update", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            index.refresh()
    agrees(index, repo)


@needs_inotify
def test_more_changes_than_the_kernel_keeps(repo: Path) -> None:
    index = watched(repo)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    files = [os.open(repo / "docs" / f"part{number}.py", os.O_WRONLY) for number in range(2)]
    for number in range(most + 10):  # alternating, since equal reports are joined
        os.pwrite(files[number % 2], b"fig", 0)
    (repo / "net" / "part0.py").write_text("fig = 'after the reports that were kept'\n")
    for file in files:
        os.close(file)
    agrees(index, repo)


@pytest.mark.parametrize("reason", ["limit", "no room", "no instance", "no library", "no module", "network"])
def test_where_the_kernel_cannot_be_asked_everything_is_looked_at(
    repo: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    added = 0

    def refuse(*_: object) -> Iterator[None]:
        nonlocal added
        added += 1
        if reason == "limit" and added < 3:
            return add(*_)  # type: ignore[arg-type, return-value]
        raise OSError(errno.ENOSPC, "no space left")

    add = watching._Inotify.add  # noqa: SLF001
    watching._library.cache_clear()  # noqa: SLF001
    if reason == "limit":
        monkeypatch.setattr(watching._Inotify, "add", refuse)  # noqa: SLF001
    elif reason == "no room":
        monkeypatch.setattr(watching, "MOST_OF_LIMIT", 0.0)
    elif reason == "no instance":
        monkeypatch.setattr(watching._Inotify, "__init__", refuse)  # noqa: SLF001
    elif reason == "no library":
        monkeypatch.setattr(sys, "platform", "darwin")
    elif reason == "no module":
        monkeypatch.setitem(sys.modules, "ctypes", None)
    else:
        monkeypatch.setattr(watching, "LOCAL", frozenset())
    index, edits = watched(repo), Edits(repo, 1)
    for _ in range(5):
        assert opened_folders(index, monkeypatch) >= 1
        edits.write()
        agrees(index, repo)
    watching._library.cache_clear()  # noqa: SLF001


@needs_inotify
def test_a_repository_that_is_replaced_is_noticed(repo: Path) -> None:
    index = watched(repo)
    shutil.copytree(repo, repo.with_name("copy"))
    (repo.with_name("copy") / "docs" / "part0.py").write_text("damson = 'in the copy'\n")
    repo.rename(repo.with_name("elsewhere"))
    with pytest.raises(UserError, match="there is no folder"):
        index.refresh()
    repo.with_name("copy").rename(repo)
    agrees(index, repo)
    (repo.with_name("elsewhere") / "net" / "part0.py").write_text("fig = 'in the former one'\n")
    agrees(index, repo)


@needs_inotify
def test_a_fork_takes_no_report_from_its_parent(repo: Path) -> None:
    index = watched(repo)
    (repo / "docs" / "part0.py").write_text("apple = 'changed before the fork'\n")
    child = multiprocessing.get_context("fork").Process(target=index.refresh)
    child.start()
    child.join()
    assert child.exitcode == 0
    agrees(index, repo)


@needs_inotify
def test_a_locator_that_lasts_sees_a_change_before_its_first_question(repo: Path) -> None:
    locator = Locator(repo, lasting=True)
    (repo / "docs" / "late.py").write_text("def persimmon():\n    return 'late'\n")
    assert [hit.path for hit in locator.locate("where is the persimmon?", 1).files] == ["docs/late.py"]


@needs_inotify
def test_an_index_that_is_dropped_leaves_nothing_open(repo: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    index = watched(repo)
    assert len(os.listdir("/proc/self/fd")) == before + 1  # noqa: PTH208
    del index
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
