"""`reflectrl sweep RECIPE --rl.lr 1e-4,3e-4`: a run for every combination of settings.

Runs share artifacts whose settings are the same. If only [rl] differs, the second run reuses teaching and SFT of the
first. By default, runs are compared on validation tasks, since settings chosen on test tasks would spoil the test.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from reflectrl.core.config import load_recipe
from reflectrl.core.config.files import parse_overrides
from reflectrl.core.config.reference import keys
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError
from reflectrl.tools.sweeps.forking import take_over

Point = Mapping[str, str]
"""Settings of a single run: dotted key → value, as on the command line."""


def combinations(settings: Sequence[str]) -> list[Point]:
    """Return every combination of the values that settings list with commas. A key that takes a list keeps its commas.

    Raises:
        UserError: no setting has several values.
    """
    lists = {key.dotted for key in keys() if key.type.startswith("list")}
    overrides = dict(parse_overrides(settings))
    values = {key: [text] if key in lists else text.split(",") for key, text in overrides.items()}
    if all(len(texts) == 1 for texts in values.values()):
        raise UserError("sweep: no setting has several values; list them with commas: --rl.lr 1e-4,3e-4")
    values.setdefault("eval.splits", ["validation"])
    return [dict(zip(values, texts, strict=True)) for texts in itertools.product(*values.values())]


def words_of(point: Point) -> list[str]:
    """Return a point as overrides of a recipe."""
    return [f"{key}={value.strip()}" for key, value in point.items()]


def varied(points: Sequence[Point]) -> list[str]:
    """Return the keys that have several values."""
    return [key for key in points[0] if len({point[key] for point in points}) > 1]


def name_of(point: Point, shown: Sequence[str]) -> str:
    """Return a folder's name for a point: its values of these keys."""
    return re.sub(r"[^\w.=,+-]", "_", ",".join(f"{key}={point[key].strip()}" for key in shown))


def run_all(path: Path, points: Mapping[Path, Point], trust: bool) -> list[str]:
    """Make the missing artifacts of every run.

    Args:
        path: path of the recipe.
        points: run folder → its settings.
        trust: let the recipe's file name code.

    Returns:
        A line for each run that failed.
    """
    from reflectrl.api import train  # imports numpy and gymnasium

    failed = []
    for run_number, (folder, point) in enumerate(points.items(), start=1):
        console(160).print(f"run {run_number} of {len(points)}: {folder.name}", soft_wrap=True)
        try:
            recipe = load_recipe(path, words_of(point), trust)
            if not (folder / "recipe.toml").is_file():
                for other in list(points)[: run_number - 1]:
                    take_over(recipe, other, folder)
            train(recipe, folder)
        except UserError as error:
            failed.append(f"{folder.name}: {error}")
            console(160).print(f"failed: {error}", soft_wrap=True)
    return failed
