"""Count lines and lines of code: of the core, each method and wing of the package, and the other folders.

    python -m benchmarks.lines

Blank lines, comments and docstrings are not lines of code.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "reflectrl"
BESIDE = (
    "cluster", "distill", "downloads", "endpoints", "exporting", "fitting", "offline", "playing", "pretrained",
    "reflecting", "remote", "sweeps", "values", "watching", "workbench",
)  # fmt: skip
"""Folders of further methods, which register themselves as wings do. Everything else is the core."""
EMPTY = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
)  # fmt: skip


def code_lines(text: str) -> int:
    """Count the lines of code in a Python file."""
    docstrings = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    found = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in EMPTY:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - docstrings)


def place_of(path: Path) -> str:
    """Return the row of the table that a file belongs to."""
    if not path.is_relative_to(PACKAGE):
        return f"{path.relative_to(ROOT).parts[0]}/"
    parts = path.relative_to(PACKAGE).parts
    if parts[0] == "wings" and len(parts) > 2:
        return f"wing {parts[1]}"
    return f"method {parts[0]}" if parts[0] in BESIDE else "core"


def main() -> None:
    """Print the table."""
    code, whole, files = Counter[str](), Counter[str](), Counter[str]()
    for folder in ("src", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text, place = path.read_text(encoding="utf-8"), place_of(path)
            code[place] += code_lines(text)
            whole[place] += len(text.splitlines())
            files[place] += 1
    print(f"{'':22}{'files':>8}{'lines':>9}{'of code':>9}")
    inside = [place for place in code if not place.endswith("/")]
    for place in [*sorted(code, key=lambda place: (place.endswith("/"), -code[place]))]:
        print(f"{place:22}{files[place]:8,}{whole[place]:9,}{code[place]:9,}")
    total = [sum(counts[place] for place in inside) for counts in (files, whole, code)]
    print(f"{'the package':22}{total[0]:8,}{total[1]:9,}{total[2]:9,}")


if __name__ == "__main__":
    main()
