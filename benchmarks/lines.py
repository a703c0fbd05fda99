"""Count lines and lines of code in each room and wing of the package, and in the other folders.

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
REMOVABLE = ("serving", "methods", "tools", "examples", "wings")
"""Rooms without which a run still works (tests/test_house.py)."""
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
    token_lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in EMPTY:
            token_lines |= set(range(token.start[0], token.end[0] + 1))
    return len(token_lines - docstrings)


def row_of(path: Path) -> str:
    """Return the row of the table that a file belongs to."""
    if not path.is_relative_to(PACKAGE):
        return f"{path.relative_to(ROOT).parts[0]}/"
    room, *inside = path.relative_to(PACKAGE).parts
    if room == "wings" and len(inside) > 1:
        return f"wings/{inside[0]}"
    return room if inside else "(files beside the rooms)"


def main() -> None:
    """Print the table."""
    code, lines, files = Counter[str](), Counter[str](), Counter[str]()
    for folder in ("src", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text, row = path.read_text(encoding="utf-8"), row_of(path)
            code[row] += code_lines(text)
            lines[row] += len(text.splitlines())
            files[row] += 1
    print(f"{'':22}{'files':>8}{'lines':>9}{'of code':>9}")
    inside = [row for row in code if not row.endswith("/")]
    for row in [*sorted(code, key=lambda row: (row.endswith("/"), -code[row]))]:
        print(f"{row:22}{files[row]:8,}{lines[row]:9,}{code[row]:9,}")
    total = [sum(counts[row] for row in inside) for counts in (files, lines, code)]
    print(f"{'the package':22}{total[0]:8,}{total[1]:9,}{total[2]:9,}")


if __name__ == "__main__":
    main()
