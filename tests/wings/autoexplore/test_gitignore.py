"""Our walk with the rules of .gitignore files against git's own answer."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.gitignore import Rules, is_ignored
from reflectrl.wings.autoexplore.index import Filters
from reflectrl.wings.autoexplore.repository import Repository

EVERYTHING = Filters(hidden=False, tests=False, binaries=False, non_ascii=False, min_characters=0)
FILES = (
    "a", "b.py", "abc.txt", "build/a", "build/keep/b.py", "src/a", "src/abc.txt", "src/build/b.py", "src/deep/er/a.pyc",
    "src/deep/er/abc.txt", "src/a b.txt", "src/[x].py", "docs/#a", "docs/!b", "docs/build", "x/y/z/a/b/c.py",
)  # fmt: skip

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is what we compare with")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    subprocess.run(["git", "init", "-q", root], check=True)
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("some text\n", encoding="utf-8")
    return root


def by_git(root: Path) -> set[str]:
    """What git would add; folders that are repositories themselves do not occur here."""
    command = ["git", "-C", root, "-c", "core.excludesFile=", "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    return {name for name in listed if name}


def by_us(root: Path) -> set[str]:
    try:
        return set(Repository.open(root, EVERYTHING).files)
    except UserError:
        return set()


def compare(root: Path, **rules: str) -> set[str]:
    for folder, text in rules.items():
        (root / folder.replace("_", ".") / ".gitignore").write_bytes(text.encode())
    try:
        ours = by_us(root)
        assert ours == by_git(root), rules
        return ours
    finally:
        for folder in rules:
            (root / folder.replace("_", ".") / ".gitignore").unlink()


@pytest.mark.parametrize(
    "rules",
    [
        "a",
        "/a",
        "a/",
        "build/",
        "build",
        "/build/\n!build/keep/",
        "build/*\n!build/keep/",
        "build/**\n!build/keep\n!build/keep/**",
        "*\n!*/\n!*.py",
        "*\n!src/",
        "*.txt\n!src/",
        "*.txt\n!src/abc.txt",
        "*.py[cod]",
        "src/*/b.py",
        "src/**/abc.txt",
        "**/er/*",
        "**/deep/**",
        "x/**/c.py",
        "x/**",
        "/*/*\n!src/*",
        "# a comment\n\\#a\n\\!b",
        "a b.txt   \nb.py",
        "a\\ b.txt",
        "\\[x\\].py",
        "[x].py",
        "[!a]",
        "src[!a]a",
        "x[+-9]y",
        "?",
        "/",
        "!",
        "**",
        "**/",
        "*/",
        "***",
        "a**c.txt",
        "\ufeffa\r\nb.py\r\n",
        "docs/build/",
        "a\n!/a",
        "[",
        "trailing\\",
        "",
        "[[:lower:]]",
        "[[:lower:]]/",
        "[[:upper:]]*",
        "[![:lower:]]*",
        "[^[:punct:]]*",
        "docs/[[:punct:]]?",
        "docs/[[:punct:]b]a",
        "docs/[[:punct:][:alpha:]]*",
        "docs/[![:graph:]]*",
        "src/a[[:blank:]]b.txt",
        "src/a[[:space:][:digit:]]b.txt",
        "src[[:punct:]]a",
        "[[:alnum:]-z]",
        "[[:alpha:]",
        "[[:alpha]]",
        "[[:nothing:]]",
        "\\[[:alpha:]]",
        "[]a]",
        " a",
        "\ta",
        "\t",
        "a\\\\ ",
        "a\0b\nb.py",
        "\0",
    ],
)
def test_what_git_ignores_is_left_out(checkout: Path, rules: str) -> None:
    compare(checkout, _=rules)


def test_nested_files_are_honoured(checkout: Path) -> None:
    kept = compare(checkout, _="*.txt\nb.py", src="!abc.txt\n/a\n")
    assert "src/abc.txt" in kept and "abc.txt" not in kept and "src/a" not in kept
    compare(checkout, _="/src/", src="!abc.txt")
    compare(checkout, _="!src/abc.txt", src="*.txt")


NAMES = st.sampled_from(
    ["a", "b", "*", "**", "?", "build", "src", "deep", "*.py", "abc*", "*b*", "[ab]", "[!b]*", "*.*"]
)
LINES = st.builds(
    lambda negated, anchored, names, folder: "!" * negated + "/" * anchored + "/".join(names) + "/" * folder,
    st.booleans(),
    st.booleans(),
    st.lists(NAMES, min_size=1, max_size=3),
    st.booleans(),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, min_size=1, max_size=4), st.lists(LINES, max_size=2))
def test_generated_rules(checkout: Path, above: list[str], below: list[str]) -> None:
    compare(checkout, _="\n".join(above), src="\n".join(below))


def test_a_rule_cannot_take_for_ever() -> None:
    began = time.process_time()
    Rules("", "*a" * 100 + "b").verdict("a" * 255)
    Rules("", "/".join(["**", "a"] * 50) + "/b").verdict("a/" * 64 + "c")
    Rules("", "[[:" * 20_000).verdict("a" * 255)
    Rules("", "[" * 60_000 + "\n" + "[[:alpha:]" * 6000 + "\n" + " " * 60_000 + "a").verdict("a" * 255)
    Rules("", "**/*a*/**/*a*/b").verdict(("a" * 100 + "/") * 40 + "c")
    assert time.process_time() - began < 2


def test_rules_count_from_their_own_folder() -> None:
    rules = (Rules("src", "/a"),)
    assert is_ignored("src/a", rules) and not is_ignored("src/b/a", rules)


def test_a_tab_at_the_end_of_a_rule_leaks_nothing(tmp_path: Path) -> None:
    """git takes the tab for a part of the name; its author did not."""
    (tmp_path / ".gitignore").write_text("secret/\t\nkey.txt \t\n", encoding="utf-8")
    (tmp_path / "secret").mkdir()
    for name in ("secret/a.txt", "key.txt", "key.txt \t", "kept.txt"):
        (tmp_path / name).write_text("ten characters\n", encoding="utf-8")
    assert Repository.open(tmp_path).files == ("kept.txt",)
