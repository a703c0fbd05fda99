"""The table of text tasks on the terminal, from the results of one run or of several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reflectrl.types import UserError

LAST = ("distinct-1", "distinct-2", "distinct-3", "length", "meteor", "coverage", "density")
"""Metrics that follow the components of the reward."""


def show(console: Console, *folders: Path) -> None:
    """Print a table per task, split and sampling; the data's own completions stand in each.

    Raises:
        UserError: a folder holds no results of a text task.
    """
    found = [read(folder) for folder in folders]
    lines = [line for results in found for line in results["summary"]]
    level = found[0]["confidence"]
    places = dict.fromkeys((line["task"], line["split"], line["sampling"]) for line in lines if line["sampling"])
    for task, split, sampling in places:
        mine = [row for row in lines if (row["task"], row["split"]) == (task, split)]
        mine = [row for row in mine if row["sampling"] in ("", sampling)]
        console.print(_table(f"{task}, {split} prompts, {sampling}: reward and {level:.0%} interval", mine))


def read(folder: Path) -> dict[str, Any]:
    """The results of a run."""
    path = folder / "results.json"
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no results there yet (or they cannot be read)") from error
    if results.get("kind") != "text":
        raise UserError(f"{path}: these are not the results of a text task")
    return results


def columns(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics of a table: components first."""
    names = dict.fromkeys(name for line in lines for name in line["metrics"])
    return [*(name for name in names if name not in LAST), *(name for name in LAST if name in names)]


def _table(title: str, lines: Sequence[Mapping[str, Any]]) -> Table:
    names = columns(lines)
    table = Table(title=title, title_justify="left")
    for name in ("arm", "checkpoint", "seeds", "reward"):
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        reward = f"{line['reward']:.3f} [{line['low']:.3f}, {line['high']:.3f}]"
        values = (line["metrics"].get(name) for name in names)
        cells = ("-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in values)
        table.add_row(line["arm"], line["checkpoint"], str(line["seeds"]), reward, *cells)
    by = ", ".join(dict.fromkeys(line["meteor_by"] for line in lines if line["meteor_by"]))
    table.caption = f"METEOR matched words by {by}" if by else None
    return table
