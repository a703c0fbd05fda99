"""How much code there is: lines of each room, wing and folder, and how many of them are code.

    python -m benchmarks.lines

A line of code is one that is not blank and holds more than a comment or a docstring.
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
"""Further methods, which register themselves as wings do; everything else in the package is the core."""
EMPTY = (
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
)  # fmt: skip


def code_lines(text: str) -> int:
    """How many lines of a Python file are code."""
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
    """The line of the table to which a file belongs."""
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
