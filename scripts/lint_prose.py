#!/usr/bin/env python3
"""Lint the English of docstrings: they begin with a verb or the noun of the thing, and need no second reading.

    python scripts/lint_prose.py            # all of src/, benchmarks/ and scripts/
    python scripts/lint_prose.py FILE ...

Prints one line per finding and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "scripts")

FIRST_WORDS = re.compile(r"(What|Whatever|Whether|Where|Who|Whoever|Whose|How|Which)\b(?!.*\?$)")
"""Question words that must not begin a docstring, since they describe the thing instead of naming it."""

RIDDLES = re.compile(r"\b(of which|that of|those of|one that|of one|whoever|nobody|which of)\b")
"""Phrases that make a reader look back for what they refer to."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and first paragraph of every docstring of a file, attributes' strings included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for i, statement in enumerate(body):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            text = statement.value.value
            # A string is a docstring at the head of a module, class or function, or right after an assignment.
            after = i > 0 and isinstance(body[i - 1], ast.Assign | ast.AnnAssign)
            if isinstance(text, str) and ((i == 0 and documented) or after):
                yield statement.lineno, " ".join(text.strip().split("\n\n")[0].split())


def findings(path: Path) -> Iterator[str]:
    """Yield a line for each docstring of a file that breaks a rule."""
    for line, text in docstrings(path):
        shown = f"{path.relative_to(ROOT)}:{line}: "
        if FIRST_WORDS.match(text):
            yield f"{shown}begins with {text.split()[0]!r}; name the thing, or begin with a verb: {text[:80]!r}"
        elif match := RIDDLES.search(text):
            yield f"{shown}says {match[0]!r}; name what is meant: {text[:100]!r}"


def main(arguments: list[str]) -> int:
    """Print all findings; return the exit code."""
    paths = [Path(name).resolve() for name in arguments]
    paths = paths or [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [line for path in paths for line in findings(path)]
    print("\n".join(found) if found else f"{len(paths)} files: no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
