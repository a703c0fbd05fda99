"""A program that opens hostile repositories, asks for thousands of paths, and is watched while it does so.

    python watched.py BASE SEED PATHS TITLE=ROOT ...

An audit hook of Python's, which cannot be taken back, sees every file that is opened, every process and every socket.
It allows one way of opening: the root itself, and then name by name, for reading, refusing links. The program says that
it is ready, waits for a line, and prints a JSON object of what it did and of what was wrong.
"""

import difflib  # noqa: F401  what is imported later would be seen as a file outside that is opened
import json
import os
import random
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.index import Filters
from reflectrl.wings.autoexplore.names import joined, parent, shown
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text, Unreadable

CANARY = "CANARY-0451"
ALL = Filters(ignored=False, hidden=False, tests=False, binaries=False, non_ascii=False, min_characters=0)
GIT = Filters(ignored=True, hidden=False, tests=False, binaries=True, non_ascii=False, min_characters=0)
LIMIT = 5000
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
WATCHED = (
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "tempfile.",
    "ctypes.",
    "pty.",
    "fcntl.",
    "mmap.",
    "glob.",
    "pathlib.",
)
WORDS = (
    "..",
    ".",
    "",
    "a.py",
    "src",
    "secret.txt",
    "outside",
    "repo",
    "etc/passwd",
    "\0",
    "~",
    "-rf",
    "%2e%2e",
    "\udcff",
    "\ud800",
)

root = ""
counts: Counter[str] = Counter()
wrong: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        name, _, flags = os.fsdecode(arguments[0]), *arguments[1:]
        if name == "":  # no file has this name: Python looks there for the line of a syntax error
            return
        counts["opened"] += 1
        above = name == root if name.startswith("/") else "/" not in name and name not in ("", ".", "..")
        if not above or flags & WRITING or not flags & os.O_NOFOLLOW:
            wrong.append(f"open {arguments!r}")
    elif event == "os.scandir" and isinstance(arguments[0], int):
        counts["listed"] += 1
    elif event.startswith(WATCHED):
        wrong.append(f"{event} {arguments!r}")


def check(text: str) -> None:
    if CANARY in text or "root:x:0" in text:
        wrong.append("outside content was shown")


def ask(repository: Repository, path: str) -> None:
    """Everything that takes a path."""
    found = repository.read(path, LIMIT)
    assert isinstance(found, Text | Unreadable)
    counts[type(found).__name__] += 1
    assert (path in repository) or found == Unreadable("there is no such file")
    if isinstance(found, Text):
        check(found.text)
        assert len(found.text) <= LIMIT
    assert shown(path).isprintable()
    for question in (repository.folder, repository.size):
        try:
            question(path)
        except UserError as error:
            assert str(error).isprintable()


def some_path(known: list[str], draw: random.Random, base: str) -> str:
    """A path that exists, or one that was bent to lead elsewhere."""
    path = draw.choice(known)
    bend = draw.randrange(10)
    if bend < 3:
        return path
    if bend == 3:
        return "/".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 7)))
    if bend == 4:
        return "/".join((path, *[".."] * draw.randrange(1, 9), draw.choice(WORDS)))
    if bend == 5:
        return draw.choice((root, base, base + "/outside", "", "/proc/self/root", "/dev/fd", "file://")) + "/" + path
    if bend == 6:
        return draw.choice((path.upper(), path + "/", "./" + path, path.replace("/", "//"), "/" + path, path + "\0"))
    if bend == 7:
        place = draw.randrange(len(path) + 1)
        return path[:place] + draw.choice("\0\n/.\\\u202e\udc80 ~*") + path[place:]
    return joined(parent(path), draw.choice(WORDS)) if bend == 8 else path * draw.choice((2, 500))


def on_disk(folder: str) -> list[str]:
    """Paths of what is really there, links and all."""
    found = []
    for above, folders, files in os.walk(folder):
        found += [os.path.relpath(os.path.join(above, name), folder) for name in (*folders, *files)[:50]]  # noqa: PTH118
    return found[:500]


def explore(base: str, known: list[str], paths: int, draw: random.Random) -> None:
    for filters in (Filters(), GIT, ALL):
        try:
            repository = Repository.open(root, filters, cache_bytes=20_000)
        except UserError as error:
            assert str(error).isprintable()
            counts["refused"] += 1
            continue
        counts["repositories"] += 1
        listed = [*known, *repository.files[:500], *repository.folders]
        for _ in range(paths):
            path = some_path(listed, draw, base)
            counts["paths"] += 1
            ask(repository, path)


def main(base: str, seed: str, paths: str, *given: str) -> None:
    global root
    draw = random.Random(int(seed))
    roots = dict(each.split("=", 1) for each in given)
    known = {title: ["a.py", "src/a.py", *on_disk(folder)] for title, folder in roots.items()}
    os.chdir(f"{base}/outside")  # whoever forgets to say from where finds the canaries
    if os.geteuid() == 0:
        os.seteuid(65534)  # the superuser is refused nothing
    sys.stderr.write("READY\n")
    sys.stdin.readline()  # a tracer may come in here
    sys.addaudithook(watch)
    for title, folder in roots.items():
        root = str(Path(folder).resolve())
        try:
            explore(base, known[title], int(paths), draw)
        except Exception:
            wrong.append(f"{title}: {traceback.format_exc()[-1500:]}")
        counts["layouts"] += 1
    print(json.dumps({"counts": counts, "wrong": wrong[:50]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
