"""Hostile repositories and paths: nothing outside is read, nothing written, nothing started, and nothing crashes."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text, Unreadable
from tests.wings.autoexplore import watched
from tests.wings.autoexplore.hostile import CANARY, LAYOUTS, TEXT, build, playground, state


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with playground() as folder:
        yield folder


@pytest.fixture(scope="module")
def roots(base: Path) -> dict[str, Path]:
    return build(base)


def command(base: Path, roots: dict[str, Path], paths: int) -> list[str]:
    given = [f"{title}={root}" for title, root in roots.items()]
    return [sys.executable, watched.__file__, str(base), "7", str(paths), *given]


def test_ten_thousand_paths_in_hostile_repositories(base: Path, roots: dict[str, Path]) -> None:
    before = list(state(base))
    done = subprocess.run(command(base, roots, 100), input="\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "READY\n")
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    counts = found["counts"]
    assert counts["layouts"] == len(LAYOUTS) >= 40
    assert counts["paths"] >= 10_000 and counts["repositories"] >= 100
    assert counts["Text"] > 1000 and counts["opened"] > 10_000
    assert list(state(base)) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda root: (root / "a.py").read_text(),
        lambda root: os.close(os.open(root.parent, os.O_RDONLY | os.O_NOFOLLOW)),
        lambda root: os.close(os.open("src/a.py", os.O_RDONLY | os.O_NOFOLLOW)),
        lambda root: os.close(os.open("..", os.O_RDONLY | os.O_NOFOLLOW)),
        lambda root: os.close(os.open("a.py", os.O_RDONLY)),
        lambda root: os.close(os.open("a.py", os.O_RDWR | os.O_NOFOLLOW)),
        lambda root: (root / "a.py").unlink(),
        lambda root: (root / "new").mkdir(),
        lambda root: (root / "a.py").rename(root / "b.py"),
        lambda root: list(root.iterdir()),
        lambda root: subprocess.run(["true"], check=True),
        lambda root: os.system("true"),
        lambda root: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    ],
)
def test_the_watch_would_see_it(tmp_path: Path, act: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of leaving the sandbox is one that the audit hook speaks of."""
    (tmp_path / "src").mkdir()
    (tmp_path / "a.py").write_text(TEXT)
    (tmp_path / "src" / "a.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watched, "root", str(tmp_path))
    monkeypatch.setattr(watched, "wrong", [])
    sight = [watched.watch]
    sys.addaudithook(lambda event, arguments: sight[0](event, arguments) if sight else None)
    try:
        act(tmp_path)
    finally:
        sight.clear()  # a hook cannot be taken back, but it can be blinded
    assert watched.wrong


OPENED = re.compile(r'open(?:at)?\((?:AT_FDCWD|\d+)<.*?>, ".*?", (\S+?)(?:, \d+)?\)\s+= \d+<(.*)>$')
HARMLESS = ("openat", "open", "exit_group", "+++", "readlink", "newfstatat", "lstat", "stat", "access", "getcwd")
"""What a process may do beside reading, and opening in vain."""


@pytest.fixture
def traced() -> Callable[[list[str], Path], list[str]]:
    """The calls of a program of ours, from when it is ready, that concern files, processes and the network."""

    def trace(words: list[str], log: Path) -> list[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        options = ["-f", "-y", "-s", "4096", "-e", "trace=%file,%process,%network", "-o", str(log)]
        with subprocess.Popen(words, **pipes) as program:
            assert program.stderr.readline() == "READY\n"
            with subprocess.Popen(["strace", *options, "-p", str(program.pid)], **pipes) as tracer:
                attached = "attached" in tracer.stderr.readline()
                program.communicate("\n", timeout=100)
        if not attached:
            pytest.skip("tracing is not allowed here")
        assert program.returncode == 0
        return [line.split(maxsplit=1)[1] for line in log.read_text(errors="replace").splitlines()]

    return trace


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_kernel_sees_no_way_out_either(base: Path, roots: dict[str, Path], tmp_path: Path, traced: Any) -> None:
    """Every path that was really opened, as the kernel resolved it, lies in the repository that was being read."""
    linked = {title: root for title, root in roots.items() if title.startswith(("links", "a_pipe", "the_root"))}
    opened = 0
    for call in traced(command(base, linked, 3), tmp_path / "log"):
        if found := OPENED.match(call):
            opened += 1
            flags, path = found.groups()
            assert "O_RDONLY" in flags and "/outside" not in path, call
            assert any(path == str(root.resolve()) or path.startswith(f"{root.resolve()}/") for root in roots.values())
        else:
            assert call.startswith(HARMLESS), call
    assert opened > 200


def swapping(root: Path, outside: Path, stop: threading.Event) -> None:
    """Files and folders become links, pipes, folders, and themselves again, all the time."""
    file, folder = root / "src" / "a.py", root / "src"
    while not stop.is_set():
        file.unlink()
        file.symlink_to(outside / "a.py")
        file.unlink()
        os.mkfifo(file)
        file.unlink()
        file.mkdir()
        file.rmdir()
        file.write_text(TEXT)
        os.utime(file, ns=(1, 1))
        folder.rename(root / "moved")
        folder.symlink_to(outside)
        folder.unlink()
        (root / "moved").rename(folder)


def test_nothing_is_read_while_it_is_swapped(tmp_path: Path) -> None:
    for name, text in (("repo/src/a.py", TEXT), ("repo/b.py", TEXT), ("outside/a.py", CANARY)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.ljust(len(TEXT)))
        os.utime(tmp_path / name, ns=(1, 1))  # so that even size and time are those of the real file
    repository = Repository.open(tmp_path / "repo", cache_bytes=0)
    stop = threading.Event()
    swapper = threading.Thread(target=swapping, args=(tmp_path / "repo", tmp_path / "outside", stop))
    swapper.start()
    try:
        seen = set()
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            seen.add(repository.read("src/a.py"))
            listed = Repository.open(tmp_path / "repo", cache_bytes=0)
            seen.update(map(listed.read, listed.files))
    finally:
        stop.set()
        swapper.join()
    assert {found.text for found in seen if isinstance(found, Text)} == {TEXT}
    assert any(isinstance(found, Unreadable) for found in seen)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    folder = tmp_path_factory.mktemp("small")
    for name, text in (("repo/src/a.py", TEXT), ("repo/b.py", TEXT), ("secret.txt", CANARY)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "repo" / "link.py").symlink_to("../secret.txt")
    return Repository.open(folder / "repo")


NAMES = st.sampled_from(["..", ".", "", "src", "a.py", "b.py", "link.py", "secret.txt", "repo", "~", "\0"])


@given(st.one_of(st.lists(NAMES, max_size=6).map("/".join), st.text(st.characters(codec=None, exclude_categories=[]))))
@example("../secret.txt")
@example("link.py")
def test_any_path_is_answered(small: Repository, path: str) -> None:
    found = small.read(path)
    assert found == (Text(TEXT) if path in ("src/a.py", "b.py") else Unreadable("there is no such file"))
    for ask in (small.folder, small.size):
        try:
            ask(path)
        except UserError as error:
            assert str(error).isprintable()
