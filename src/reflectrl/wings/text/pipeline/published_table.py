"""Table of text runs in the columns of the released code of Leftover Lunch, as CSV or LaTeX: one row per model."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.learn.checkpoint import write_text
from reflectrl.wings.text.generation.table import is_attempt_rate
from reflectrl.wings.text.pipeline.results import LAST, read_results

NOT_AVAILABLE = "NA"
"""Content of a cell without a value, as in the source."""
SEGMENTS = (
    ("val_gen", "validation", False), ("test_gen", "test", False),
    ("val_gold", "validation", True), ("test_gold", "test", True),
)  # fmt: skip
"""Groups of columns: name, split, and True if the completions come from the data."""
SPECIAL = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$"}
"""Characters that LaTeX needs escaped."""


def write_table(folders: Sequence[Path], out: Path) -> None:
    """Write the table of several runs, as LaTeX if the file's name ends in .tex, otherwise as CSV.

    Raises:
        UserError: a folder holds no results of a text task, or the file cannot be written.
    """
    header, rows = table([(read_results(folder), read_curves(folder)) for folder in folders])
    write_text(out, latex(header, rows) if out.suffix == ".tex" else comma_separated(header, rows))


def table(runs: Sequence[tuple[Mapping[str, Any], Mapping[Any, Any]]]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table.

    The source counts evaluations by epoch and step. Here, training has steps only, so epochs are not available.

    Args:
        runs: results of each run, and its curves by arm and seed.
    """
    lines = [(row, results, curves) for results, curves in runs for row in reported_rows(results)]
    parts = {
        name: None for row, _, _ in lines for name in row["metrics"] if name not in LAST and not is_attempt_rate(name)
    }
    kinds = [*parts, "final_reward"]
    header = ["task_name", "baseline_model", "algorithm", "seed"]
    header += ["best e", "best s", "best V final_reward", "worst e", "worst s", "worst V final_reward"]
    header += ["val_final_reward", "test_final_reward", *(f"{name} {kind}" for name, *_ in SEGMENTS for kind in kinds)]
    rows = []
    for row, results, curves in lines:
        scores = {name: scores_of(results, row, split, gold) for name, split, gold in SEGMENTS}
        cells = [row["task"], results["recipe"], row["arm"], str(row["seed"])]
        cells += extremes(curves.get((row["arm"], row["seed"]), {}))
        cells += [number(scores[name].get("final_reward")) for name in ("val_gen", "test_gen")]
        cells += [number(scores[name].get(kind)) for name, *_ in SEGMENTS for kind in kinds]
        rows.append(cells)
    return header, rows


def reported_rows(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return one row per arm and seed: of its best checkpoint and the first kind of sampling. The data have none."""
    first: dict[Any, Mapping[str, Any]] = {}
    for row in results["rows"]:
        if row["sampling"] and row["checkpoint"] != "last":
            first.setdefault((row["arm"], row["seed"]), row)
    return list(first.values())


def scores_of(results: Mapping[str, Any], row: Mapping[str, Any], split: str, gold: bool) -> dict[str, float]:
    """Return the mean reward and its components on a split, of a model's completions or of the data's; {} if unknown.

    Args:
        gold: take the completions of the data.
    """
    for other in results["rows"]:
        is_gold = other["arm"] == "data" and other["split"] == split
        same_model = all(other[key] == row[key] for key in ("arm", "seed", "checkpoint", "sampling"))
        if is_gold if gold else (same_model and other["split"] == split):
            return {**other["metrics"], "final_reward": other["reward"]}
    return {}


def read_curves(folder: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Return the validation reward by step of every arm and seed. Damaged lines are skipped."""
    curves: dict[tuple[str, int], dict[int, float]] = {}
    if (path := folder / "metrics.jsonl").is_file():
        for _, row in read_json_lines(path, parse_json, half_written="skip", damaged="skip"):
            with suppress(KeyError, TypeError):
                curves.setdefault((row["arm"], row["seed"]), {})[row["step"]] = row["eval_reward"]
    return curves


def extremes(curve: Mapping[int, float]) -> list[str]:
    """Return epoch, step and validation reward of the best evaluation, then of the worst."""
    if not curve:
        return [NOT_AVAILABLE] * 6
    best, worst = max(curve, key=lambda step: curve[step]), min(curve, key=lambda step: curve[step])
    return [cell for step in (best, worst) for cell in (NOT_AVAILABLE, str(step), number(curve[step]))]


def number(value: float | None) -> str:
    """Format a number with three decimals."""
    return NOT_AVAILABLE if value is None else f"{value:.3f}"


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table as a LaTeX tabular. Columns without any value are left out."""
    column_indices = [i for i in range(len(header)) if any(row[i] != NOT_AVAILABLE for row in rows)]
    lines = []
    for line in (header, *rows):
        cells = " & ".join(escaped(line[i]) for i in column_indices)
        lines.append(rf"{cells} \\")
    columns = "l" * len(column_indices)
    body = "\n".join(lines[1:])
    return f"\\begin{{tabular}}{{{columns}}}\n\\hline\n{lines[0]}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}\n"


def escaped(text: str) -> str:
    """Escape the characters that LaTeX would interpret."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)
