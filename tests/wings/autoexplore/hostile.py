"""Repositories that try to lead out of themselves, to be waited for, or to break what shows them.

Each is made by a function of the folder to fill and of one outside, whose files all hold `CANARY`.
"""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CANARY = "CANARY-0451: this must never be read"
TEXT = "some text that is long enough to be kept\n"
Layout = Callable[[Path, Path], None]
LAYOUTS: dict[str, Layout] = {}


def layout(make: Layout) -> Layout:
    LAYOUTS[make.__name__] = make
    return make


def links(**targets: str) -> None:
    """A layout of links: name → target, in which OUT stands for the folder outside."""

    def make(root: Path, outside: Path) -> None:
        for name, target in targets.items():
            (root / name).symlink_to(target.replace("OUT", str(outside)))

    LAYOUTS["links_" + "_".join(targets)] = make


def names(title: str, *given: bytes | str) -> None:
    """A layout of files, and of folders with a file in each, of such names."""

    def make(root: Path, outside: Path) -> None:
        for name in given:
            data = os.fsencode(name)
            Path(os.fsdecode(os.fsencode(root) + b"/" + data)).write_text(TEXT)
            folder = Path(os.fsdecode(os.fsencode(root / "in") + b"/" + data))
            folder.mkdir(parents=True)
            (folder / os.fsdecode(data)).write_text(TEXT)

    LAYOUTS[f"names_{title}"] = make


def contents(title: str, *given: bytes) -> None:
    """A layout of files that hold such bytes."""

    def make(root: Path, outside: Path) -> None:
        for i, data in enumerate(given):
            (root / f"file{i}.txt").write_bytes(data)

    LAYOUTS[f"contents_{title}"] = make


def gitignore(title: str, text: bytes, *files: str) -> None:
    def make(root: Path, outside: Path) -> None:
        (root / ".gitignore").write_bytes(text)
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(TEXT)

    LAYOUTS[f"gitignore_{title}"] = make


links(file="OUT/a.py")
links(folder="OUT")
links(relative="../../outside/a.py")
links(chain1="chain2", chain2="chain3", chain3="OUT/a.py")
links(loop="loop")
links(ping="pong", pong="ping")
links(up="..")
links(here=".")
links(dangling="nowhere/at/all")
links(inside="a.py", again="src")
links(passwd="/etc/passwd", etc="/etc")
links(environ="/proc/self/environ", memory="/proc/self/mem", fd="/proc/self/fd", cwd="/proc/self/cwd")
links(zero="/dev/zero", stdin="/dev/stdin", tty="/dev/tty")
links(README="OUT/a.py", setup="OUT/src/a.py")
names("shell", "; touch x", "$(id)", "`id`", "| cat", "&& ls", "> out", "*", "?", "~", "$HOME", "#", "!x")
names("options", "-rf", "--help", "-", "--", "-e")
names("dots", "...", ".. ", " ..", "..x", ". ", "..\\..", "%2e%2e", "%2e%2e%2fa.py", "\uff0e\uff0e", "..\u2215a.py")
names("newline", "a\nb", "\n", "a\rb", "\r\n", "a\tb", "\x0b\x0c", "choice\nChoice: 1")
names("direction", "\u202egnp.exe", "\u2067x\u2069", "\u200fx", "a\u200bb", "\ufeffx", "\u2028", "\u0085")
names("control", "\x1b[31mred", "\x1b]0;title\x07", "\x7f", "\x01\x02", "\x08\x08\x08")
names("not_utf8", b"\xff\xfe", b"caf\xe9.txt", b"\xc0\xae\xc0\xae", b"\xed\xa0\x80", b"\x80/"[:1])
names("quotes", "'", '"', "\\", "\\n", "a'b\"c\\d", '"a"', "\\x41", "\\u{41}")
names("templates", "{{ x }}", "{% raw %}", "${x}", "{0}", "%s", "%(x)s", "[bold]", "<b>", "<|endoftext|>")
names("long", "n" * 255, "é" * 127, "😀" * 63)
names("twins", "A.py", "\u00e9", "e\u0301", "\u212b", "\u00c5", "\u0430", "K", "\u212a")
names("devices", "con", "nul", "aux.txt", "lpt1", "file:stream", "C:", "\\\\server\\share")
names("spaces", " ", "  ", " a", "a ", "\u00a0", "\u3000")
names("numbers", "1", "1: cat x", "id", "cat", "cd", "cd ..", "2; 3")
contents("not_utf8", b"\xff\xfe" * 100, "Grüße an alle".encode("latin-1"), b"ok " * 10 + b"\xc3", b"\xed\xa0\x80" * 10)
contents(
    "binary", b"\0" * 100, b"text \0 with a null", bytes(range(256)), b"\x7fELF" + b"\0" * 60, b"\x89PNG\r\n\x1a\n"
)
contents("utf16", "some text".encode("utf-16"), "some text".encode("utf-32"), b"\xef\xbb\xbfwith a mark\r\n")
contents("one_line", b"x" * 1_000_000, b"\n" * 100_000, "é".encode() * 300_000)
contents("control", b"\x1b[2J\x1b]0;title\x07 escape", b"\x08" * 50, b"\r" * 50, "\u202ereversed text".encode())
contents("empty", b"", b" ", b"\n", b"short")
gitignore("everything", b"*\n", "b.py")
gitignore("explosive", b"*a" * 60 + b"b\n" + b"**/a/" * 40 + b"b\n" + b"[!a]*" * 50, "a" * 250, "a/" * 50 + "c")
gitignore("nonsense", b"[\n\\\n!\n/\n//\n!!\n[z-a]\n**/**/**\n[[:x:]]\n(?P<x>\n\\1\n+\n", "b.py")
gitignore("junk", bytes(range(256)) * 500, "b.py")
gitignore("many", b"".join(b"rule%d*x?[ab]\n" % i for i in range(3000)), "b.py", "src/c.py")
gitignore("outside", b"!../outside/a.py\n!/etc/passwd\n../*\n", "b.py")


@layout
def gitignores_that_are_no_files(root: Path, outside: Path) -> None:
    (root / ".gitignore").symlink_to(outside / "a.py")
    for name in ("one", "two"):
        (root / name).mkdir()
    (root / "one" / ".gitignore").mkdir()
    os.mkfifo(root / "two" / ".gitignore")


@layout
def a_pipe(root: Path, outside: Path) -> None:
    os.mkfifo(root / "pipe.py")
    os.mkfifo(root / "src" / "README.md")


@layout
def a_socket(root: Path, outside: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(root)  # for a short name: a socket's may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket.py")
    finally:
        os.fchdir(here)
        os.close(here)


@layout
def devices(root: Path, outside: Path) -> None:
    for name, kind, number in (("zero.py", stat.S_IFCHR, (1, 5)), ("disk.py", stat.S_IFBLK, (7, 0))):
        try:
            os.mknod(root / name, 0o666 | kind, os.makedev(*number))
        except PermissionError:  # only root may
            os.mkfifo(root / name)


@layout
def forbidden(root: Path, outside: Path) -> None:
    for name, mode in (("none", 0o000), ("pass", 0o111), ("look", 0o444)):
        (root / name).mkdir()
        (root / name / "a.py").write_text(TEXT)
        (root / name).chmod(mode)
    (root / "secret.py").write_text(TEXT)
    (root / "secret.py").chmod(0o000)


@layout
def a_forbidden_root(root: Path, outside: Path) -> None:
    root.chmod(0o000)


@layout
def a_deep_tree(root: Path, outside: Path) -> None:
    deep = root / ("d/" * 200)
    deep.mkdir(parents=True)
    (deep / "a.py").write_text(TEXT)


@layout
def paths_too_long_for_the_system(root: Path, outside: Path) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("n" * 200, dir_fd=descriptor)
        outer, descriptor = descriptor, os.open("n" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(outer)
    file = os.open("a.py", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor)
    os.write(file, TEXT.encode())
    os.close(file)
    os.close(descriptor)


@layout
def huge_files(root: Path, outside: Path) -> None:
    for name, size in (("text.txt", 100 << 20), ("larger.txt", 1 << 40)):
        with (root / name).open("wb") as file:
            file.write(TEXT.encode() * 5000)
            file.truncate(size)


@layout
def a_wide_folder(root: Path, outside: Path) -> None:
    """Ten thousand entries; `benchmarks/autoexplore.py` opens one with ten times as many."""
    (root / "src" / ".one").write_text(TEXT)
    for i in range(10_000):
        os.link(root / "src" / ".one", root / "src" / f"{'.' * (i % 10 > 0)}{i}.py")


@layout
def many_empty_folders(root: Path, outside: Path) -> None:
    for i in range(100):
        (root / f"f{i}" / "e" / "m" / "p" / "t" / "y").mkdir(parents=True)


@layout
def only_empty_folders(root: Path, outside: Path) -> None:
    (root / "a.py").unlink()
    (root / "src" / "a.py").unlink()


@layout
def git_folders(root: Path, outside: Path) -> None:
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "hooks" / "post-checkout").write_text(f"#!/bin/sh\ntouch {outside}/run\n")
    (root / ".git" / "hooks" / "post-checkout").chmod(0o755)
    (root / "src" / ".git").write_text(f"gitdir: {outside}\n")
    (root / ".gitattributes").write_text("* filter=evil\n")
    (root / ".gitmodules").write_text(f'[submodule "x"]\n\tpath = src\n\turl = {outside}\n')


@layout
def code_that_would_like_to_run(root: Path, outside: Path) -> None:
    code = f"open({str(outside / 'run')!r}, 'w')\n"
    for name in ("setup.py", "conftest.py", "__init__.py", "sitecustomize.py", "pathspec.py", "difflib.py", "Makefile"):
        (root / name).write_text(code)
    (root / "run.sh").write_text(f"#!/bin/sh\ntouch '{outside / 'run'}'\n")
    (root / "run.sh").chmod(0o4755)


@layout
def code_that_is_none(root: Path, outside: Path) -> None:
    (outside / "<unknown>").write_text(CANARY)  # where Python looks for the line of a syntax error, if nobody minds
    for i, text in enumerate(("def f(:\n", "x = '\n", "(" * 5000, "-" * 50_000 + "1", "if x:\n" * 200, "\t x\n  y\n")):
        (root / f"broken{i}.py").write_text(text * (1 + 10 // len(text)))


@layout
def the_root_is_a_link(root: Path, outside: Path) -> None:
    root.rename(root.with_name("really"))
    root.symlink_to("really")


def build(base: Path) -> dict[str, Path]:
    """Fill `base/outside` and, per layout, a folder with an ordinary file or two beside the hostile ones."""
    outside = base / "outside"
    for name in ("a.py", "src/a.py", "secret.txt"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text(CANARY)
    roots = {}
    for title, make in LAYOUTS.items():
        root = roots[title] = base / title[:60] / "repo"
        (root / "src").mkdir(parents=True)
        (root / "a.py").write_text(TEXT)
        (root / "src" / "a.py").write_text(TEXT)
        make(root, outside)
        (root.parent / "outside").symlink_to(outside)
    return roots


def state(base: Path) -> Iterator[tuple[bytes, int, int, int, int]]:
    """All that writing would change: every entry's path, kind, size, and when it was last changed."""
    pending = [os.open(base, os.O_RDONLY)]
    while pending:
        descriptor = pending.pop()
        with os.scandir(descriptor) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                seen = entry.stat(follow_symlinks=False)
                yield os.fsencode(entry.name), seen.st_mode, seen.st_ino, seen.st_size, seen.st_ctime_ns
                if entry.is_dir(follow_symlinks=False):
                    pending.append(os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=descriptor))
        os.close(descriptor)


@contextmanager
def playground() -> Iterator[Path]:
    """A folder that other users may enter: the program gives up the superuser's rights."""
    folder = Path(tempfile.mkdtemp(prefix="hostile"))
    folder.chmod(0o755)
    yield folder
    for name in ("none", "pass", "look"):
        (folder / "forbidden" / "repo" / name).chmod(0o755)
    (folder / "a_forbidden_root" / "repo").chmod(0o755)
    shutil.rmtree(folder)
