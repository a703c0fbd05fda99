"""Random repositories, made by git itself, and what git lists in them."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")


def git(folder: Path, *arguments: str, check: bool = True) -> bytes:
    """Run git, and return its output."""
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, check=False)
    assert not check or done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def listed(top: Path) -> set[str]:
    """Return the paths of the files that git lists in a checkout, and in the repositories in it.

    Further checkouts of the same repository are left out, and so are links and what is not there.
    """
    output = git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = set[str]()
    for name in filter(None, os.fsdecode(output).split("\0")):
        entry = top / name
        if entry.is_file() and not entry.is_symlink():
            paths.add(name)
        elif (entry / ".git").exists() and not is_worktree(entry):
            paths |= {f"{name.rstrip('/')}/{inner}" for inner in listed(entry)}
    return paths


def is_worktree(folder: Path) -> bool:
    """Return whether a folder is a linked worktree."""
    link = folder / ".git"
    return link.is_file() and "/worktrees/" in link.read_text()


FOLDERS = st.sampled_from(["", "a", "a/b", "src", "src/a", "build", "build/x", "w é", "nested", "nested/in"])
NAMES = st.sampled_from(
    ["a", "b.py", "c.secret.yaml", "keep.log", "x.log", "$id.tsx", "it's & co.md", "größe.py", "gro\u0308.py",
     "t_test.py", "test_a.py", "[x].py", "#a", "!b", "back\\slash", os.fsdecode(b"latin-\xe9.py"), 'quo"te.txt',
     "tab\there", "名.py"]
)  # fmt: skip
CONTENTS = st.sampled_from(
    [b"some text\n", "größer\n".encode(), "größer\n".encode("latin-1"), "größer\n".encode("utf-16"),
     b"\xef\xbb\xbfmark\n", b"a\r\nb\r\n", b"", b"no end", b"x" * 3000 + b"\n", b"1, 2, 3\n" * 50,
     b"\0\1\2binary" * 30, b"\x1b[31m\x0c\n"]
)  # fmt: skip
PATTERN = st.lists(
    st.sampled_from(
        [
            "a",
            "*",
            "**",
            "/",
            "/",
            "build",
            "src",
            "*.log",
            "*.secret.yaml",
            "[a-c]*",
            "nested",
            "?",
            ".py",
            "b",
            "ö",
            "x",
            ".",
        ]
    ),
    min_size=1,
    max_size=4,
).map("".join)
RULES = st.lists(st.tuples(st.sampled_from(["", "", "!"]), PATTERN).map("".join), max_size=4).map("\n".join)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), FOLDERS, NAMES, CONTENTS),
        st.tuples(st.just("write"), FOLDERS, NAMES, CONTENTS),
        st.tuples(st.just("ignore"), FOLDERS, RULES),
        st.tuples(st.just("exclude"), RULES),
        st.tuples(st.just("user"), RULES),
        st.tuples(st.just("add"), FOLDERS, NAMES),
        st.tuples(st.just("commit")),
        st.tuples(st.just("init"), FOLDERS),
        st.tuples(st.just("worktree"), FOLDERS),
        st.tuples(st.just("submodule"), FOLDERS),
        st.tuples(st.just("version"), st.sampled_from(["2", "4"])),
    ),
    min_size=3,
    max_size=14,
)


def make(root: Path, user_rules: Path, steps: list[Any]) -> None:
    """Make a repository. Steps that are impossible are left undone."""
    root.mkdir()
    git(root, "init", "-q", "-b", "main", ".")
    (root / "a").mkdir()
    for number, (kind, *arguments) in enumerate(steps):
        folder = root / arguments[0] if arguments else root
        if kind == "write":
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / arguments[1]).is_dir():
                (folder / arguments[1]).write_bytes(arguments[2])
        elif kind == "ignore":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".gitignore").write_text(arguments[1], encoding="utf-8")
        elif kind == "exclude":
            (root / ".git/info/exclude").write_text(arguments[0], encoding="utf-8")
        elif kind == "user":
            user_rules.write_text(arguments[0], encoding="utf-8")
        elif kind == "add":
            git(root, "add", "-f", "--", str(folder / arguments[1]), check=False)
        elif kind == "commit":
            git(root, "add", "-A", check=False)
            git(root, "commit", "-q", "--allow-empty", "-m", "x", check=False)
        elif kind == "init" and arguments[0]:
            folder.mkdir(parents=True, exist_ok=True)
            git(folder, "init", "-q", ".")
        elif kind == "worktree":
            git(root, "worktree", "add", "-q", "--detach", str(folder / f"copy{number}"), check=False)
        elif kind == "submodule":
            source = root.parent / f"source{number}"
            source.mkdir()
            git(source, "init", "-q", ".")
            (source / "module.log").write_text("of a submodule\n")
            git(source, "add", "-f", "-A")
            git(source, "commit", "-q", "-m", "x")
            name = f"{arguments[0]}/sub{number}".strip("/")
            git(root, "submodule", "--quiet", "add", "-f", str(source), name, check=False)
            shutil.rmtree(source)
        elif kind == "version":
            git(root, "update-index", "--index-version", arguments[0], check=False)
