"""Comparison with published rows: figures of `docs/results`, kept as JSON beside this file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError
from reflectrl.runs.report.data import REFERENCES, Run, Score


@dataclass(frozen=True)
class PublishedRow:
    """Published figure.

    Attributes:
        name: name of the recipe that gave it.
        arm, split, sampling: arm, split and decoding.
        success, low, high: success rate and its 95 % interval.
        seeds: number of seeds.
        page: page of the results that explains it.
        command: command that gave it.
    """

    name: str
    arm: str
    split: str
    sampling: str
    success: float
    low: float
    high: float
    seeds: int
    page: str
    command: str


def published_rows(name: str) -> list[PublishedRow]:
    """Return the published rows of a recipe.

    Args:
        name: name of a recipe, with or without "results/" before it.

    Raises:
        UserError: there are none. The message lists the names.
    """
    text = files("reflectrl.tools.sweeps").joinpath("published.json").read_text(encoding="utf-8")
    rows = [PublishedRow(**row) for row in json.loads(text)]
    wanted = name.removeprefix("results/")
    of_name = [row for row in rows if row.name == wanted]
    if not of_name:
        names = list(dict.fromkeys(row.name for row in rows))
        raise UserError(f"compare: no published rows of {wanted!r}{suggestion(wanted, names)}")
    return of_name


def against(run: Run, called: str, rows: Sequence[PublishedRow]) -> list[str]:
    """Compare the learned arms of a run with published rows of the same split and sampling, a line for each pair.

    The tasks of a published row are not available, so the difference is not paired. Its interval is made from the two
    intervals (Newcombe 1998, method 10).
    """
    lines = []
    scores = [score for score in (run.results.summary if run.results else ()) if score.arm not in REFERENCES]
    for row in rows:
        matching = [score for score in scores if (score.split, score.sampling) == (row.split, row.sampling)]
        final_scores = [score for score in matching if score.stage == matching[-1].stage]
        for score in final_scores:
            lines.append(_line(score, called, row))
    if not lines:
        measured = ", ".join(dict.fromkeys(f"{row.split} tasks, {row.sampling}" for row in rows))
        lines.append(f"{called}: it has no results to compare with {rows[0].name}, which was measured on {measured}")
    return lines


def _line(score: Score, called: str, row: PublishedRow) -> str:
    low = score.success if score.low is None else score.low
    high = score.success if score.high is None else score.high
    gap = score.success - row.success
    least = gap - math.hypot(score.success - low, row.high - row.success)
    most = gap + math.hypot(high - score.success, row.success - row.low)
    if least <= 0 <= most:
        verdict = "cannot be told apart"
    else:
        verdict = f"{called} is better" if gap > 0 else "the published row is better"
    return (
        f"{called} · {score.arm} {100 * score.success:.1f} %, published {row.arm} {100 * row.success:.1f} %"
        f" [{100 * row.low:.0f}, {100 * row.high:.0f}] ({row.split}, {row.sampling}; {row.page}):"
        f" {100 * gap:+.1f} points [{100 * least:.0f}, {100 * most:.0f}], {verdict}"
    )
