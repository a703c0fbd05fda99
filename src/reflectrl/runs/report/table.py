"""Results as tables ready to print: one per split and sampling, a line per arm, the best values marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.runs.report.data import REFERENCES, Score, in_page_order


@dataclass(frozen=True)
class Cell:
    """Success on one stage. `low` and `high` are None if no interval was recorded."""

    success: float
    low: float | None
    high: float | None
    best: bool


@dataclass(frozen=True)
class Line:
    """An arm in a table. The single numbers, and `shares` (one per name in the table), come from the last stage."""

    arm: str
    note: str
    reference: bool
    cells: tuple[Cell | None, ...]
    mean_return: float | None
    best_return: bool
    steps: float | None
    seconds: float | None
    episodes: int | None
    seeds: int | None
    shares: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Table:
    """One split and sampling. `shares` names further columns: pass@k, and the share of illegal answers."""

    split: str
    sampling: str
    stages: tuple[str, ...]
    lines: tuple[Line, ...]
    shares: tuple[str, ...] = ()


def tables(scores: Sequence[Score]) -> list[Table]:
    """Return a table per split and sampling, in order of appearance."""
    return [
        _table(split, sampling, [score for score in scores if (score.split, score.sampling) == (split, sampling)])
        for split, sampling in dict.fromkeys((score.split, score.sampling) for score in scores)
    ]


def _table(split: str, sampling: str, scores: Sequence[Score]) -> Table:
    stages = tuple(dict.fromkeys(score.stage for score in scores))
    best = [score for stage in stages for score in _best([s for s in scores if s.stage == stage], "success")]
    best_return = _best([score for score in scores if score.stage == stages[-1]], "mean_return")
    names = tuple(dict.fromkeys(name for score in scores if score.stage == stages[-1] for name in score.shares))
    lines = []
    for arm in in_page_order([score.arm for score in scores]):
        mine = [score for score in scores if score.arm == arm]
        seeds = list(dict.fromkeys(score.seed for score in mine))  # more than one only where nobody pooled them
        for seed in seeds:
            by_stage = {score.stage: score for score in mine if score.seed == seed}
            note = f"seed {seed}" if len(seeds) > 1 else ""
            lines.append(_line(arm, note, [by_stage.get(stage) for stage in stages], best, best_return, names))
    return Table(split, sampling, stages, tuple(lines), names)


def _line(
    arm: str, note: str, scores: Sequence[Score | None], best: Sequence[Score], best_return: Sequence[Score],
    names: Sequence[str],
) -> Line:  # fmt: skip
    """Return an arm's line. `scores` holds a score or None per stage, `names` the further shares that are shown."""
    last = scores[-1]
    return Line(
        arm=arm,
        note=note,
        reference=arm in REFERENCES,
        cells=tuple(None if s is None else Cell(s.success, s.low, s.high, s in best) for s in scores),
        mean_return=last.mean_return if last else None,
        best_return=last in best_return,
        steps=last.steps if last else None,
        seconds=last.seconds if last else None,
        episodes=last.episodes if last else None,
        seeds=last.seeds if last else None,
        shares=tuple(last.shares.get(name) if last else None for name in names),
    )


def _best(scores: Sequence[Score], name: str) -> list[Score]:
    """Return the trained arms with the highest value, several if they tie; none if it is not above random play's."""
    valued = [score for score in scores if getattr(score, name) is not None]
    learned = [score for score in valued if score.arm not in REFERENCES]
    top = max((getattr(score, name) for score in learned), default=None)
    if any(score.arm == "random" and getattr(score, name) >= top for score in valued if learned):
        return []
    return [score for score in learned if getattr(score, name) == top]


def headline(found: Sequence[Table]) -> tuple[Table, list[Line]] | None:
    """Return the main table, which is the test split's if there is one, and its best trained arms."""
    table = next((table for table in found if table.split == "test"), found[-1] if found else None)
    if table is None:
        return None
    winners = [line for line in table.lines if (cell := line.cells[-1]) is not None and cell.best]
    return (table, winners) if winners else None
