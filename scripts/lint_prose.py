#!/usr/bin/env python3
"""Lint the English of docstrings and names.

    python scripts/lint_prose.py            # all of src/, benchmarks/ and scripts/
    python scripts/lint_prose.py FILE ...
    python scripts/lint_prose.py --update   # lower the counts in vague_names.json to those of today

A docstring begins with a verb or the noun of the thing, and needs no second reading. The names of functions, classes,
arguments and variables say what they stand for: vague ones that are older than this rule are counted per file in
`vague_names.json`, and the counts may only fall. Prints one line per finding and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "scripts")

FIRST_WORDS = re.compile(r"(What|Whatever|Whether|Where|Who|Whoever|Whose|How|Which)\b(?!.*\?$)")
"""Question words that must not begin a docstring, since they describe the thing instead of naming it."""

RIDDLES = re.compile(r"\b(of which|that of|those of|one that|of one|whoever|nobody|which of)\b")
"""Phrases that make a reader look back for what they refer to."""

WORDS = """
    alike alone apart brought chosen claim dealt found heard heed kept known one piece place places portions related
    seated spelled thing things told way ways whole wholes
"""
VAGUE = frozenset(WORDS.split())
"""Names that a reader has to ask about. In their place stand the field's terms (docs/glossary.md)."""

BASELINE = ROOT / "scripts" / "vague_names.json"
"""File with the number of vague names in each older file."""


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


def vague_names(path: Path) -> list[tuple[int, str]]:
    """Return the line and name of every function, class, argument and assigned variable of a file with a vague name."""
    names: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.id))
    return sorted((line, name) for line, name in names if name.strip("_").lower() in VAGUE)


def new_vague_names(path: Path, allowed: int) -> Iterator[str]:
    """Yield the findings of a file that has more vague names, or fewer, than its count in the baseline."""
    names = vague_names(path)
    shown = path.relative_to(ROOT)
    if len(names) > allowed:
        listed = ", ".join(f"{name!r} in line {line}" for line, name in names)
        yield f"{shown}: {len(names)} vague names, {allowed} allowed; name what is meant: {listed}"
    elif len(names) < allowed:
        yield f"{shown}: {len(names)} vague names, {allowed} in the baseline; run scripts/lint_prose.py --update"


def lower_baseline(paths: list[Path], baseline: dict[str, int]) -> None:
    """Lower the baseline to the counts of today. Counts never rise, and files that are gone are dropped."""
    counts = {str(path.relative_to(ROOT)): len(vague_names(path)) for path in paths}
    lowered = {name: min(count, baseline.get(name, 0)) for name, count in counts.items()}
    kept_lines = {name: count for name, count in sorted(lowered.items()) if count}
    BASELINE.write_text(json.dumps(kept_lines, indent=1) + "\n", encoding="utf-8")


def conflict_markers() -> list[str]:
    """Return the lines at which a merge left its markers, in any tracked file."""
    pattern = r"^(<{7}|>{7}|={7}$)"
    search = subprocess.run(["git", "grep", "-nE", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    return [f"{line}: left by a merge" for line in search.stdout.splitlines()]


def main(arguments: list[str]) -> int:
    """Print all findings; return the exit code."""
    baseline: dict[str, int] = json.loads(BASELINE.read_text(encoding="utf-8"))
    everything = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    if arguments == ["--update"]:
        lower_baseline(everything, baseline)
        return 0
    paths = [Path(name).resolve() for name in arguments] or everything
    lines = [line for path in paths for line in findings(path)]
    lines += conflict_markers()
    for path in paths:
        lines += new_vague_names(path, baseline.get(str(path.relative_to(ROOT)), 0))
    print("\n".join(lines) if lines else f"{len(paths)} files: no findings")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
