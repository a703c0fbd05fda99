"""What messages advise works: extras can be had where the package is, and is worded for whoever reads it."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectrl.core.advice import install, on_the_command_line, option

ROOT = Path(__file__).parents[1]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
FROM_AN_INDEX = re.compile(r"\breflectrl\[[a-z]|pip install ['\"]?reflectrl")
"""Advice to get the package, or an extra of it, from an index, where it is not."""


def texts() -> Iterator[Path]:
    """Whatever a reader or a user sees."""
    for pattern in ("README.md", "docs/**/*.md", "src/**/*.py", "src/**/*.toml", "src/**/*.txt", "benchmarks/*.py"):
        yield from ROOT.glob(pattern)


def test_nobody_is_sent_to_an_index_that_does_not_have_the_package() -> None:
    advised = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts()
        for line in path.read_text(encoding="utf-8").splitlines()
        if FROM_AN_INDEX.search(line) and "finds nothing" not in line and 'answer.reflectrl["' not in line
    ]
    assert advised == []


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "install":
                named |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    assert len(named) >= 12 and named <= EXTRAS


def test_the_advice_is_what_make_does() -> None:
    told = install("text", "mcp")
    assert "pip install '.[text,mcp]'" in told and "make setup EXTRA=text,mcp" in told
    words = re.search(r"make [^)]*", told)
    assert words is not None
    # Inside `make test` a second make says which folder it enters and leaves, before and after what is asked of it.
    command = [*words[0].split(), "-n", "--no-print-directory"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].endswith("--editable '.[text,mcp]'")


@pytest.mark.parametrize(
    ("key", "value", "typed", "written"),
    [
        ("folder", None, "--folder", "folder"),
        ("trust", True, "--trust", "trust=True"),
        ("arms", ["no-reflection"], "--arms no-reflection", 'arms=["no-reflection"]'),
        ("teach.by", "log", "--teach.by log", 'teach={"by": "log"}'),
        ("teach", {"by": "log", "log": ["d"]}, "--teach.by log --teach.log d", 'teach={"by": "log", "log": ["d"]}'),
        ("rl.lr", 0.1, "--rl.lr 0.1", 'rl={"lr": 0.1}'),
    ],
)
def test_what_can_be_set_is_told_as_the_caller_sets_it(key: str, value: object, typed: str, written: str) -> None:
    assert option(key, value) == written
    with on_the_command_line():
        assert option(key, value) == typed
    assert option(key, value) == written
