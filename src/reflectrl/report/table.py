"""Results as tables ready to print: one per split and sampling, a line per arm, the best of each column marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.report.data import REFERENCES, Score, in_page_order


@dataclass(frozen=True)
class Cell:
    """Success on one stage; `low` and `high` are None where no interval was recorded."""

    success: float
    low: float | None
    high: float | None
    best: bool


@dataclass(frozen=True)
class Line:
    """An arm in a table; the plain numbers belong to the table's last stage."""

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


@dataclass(frozen=True)
class Table:
    """One split and sampling."""

    split: str
    sampling: str
    stages: tuple[str, ...]
    lines: tuple[Line, ...]


def tables(scores: Sequence[Score]) -> list[Table]:
    """A table per split and sampling, in the order in which they occur."""
    return [
        _table(split, sampling, [score for score in scores if (score.split, score.sampling) == (split, sampling)])
        for split, sampling in dict.fromkeys((score.split, score.sampling) for score in scores)
    ]


def _table(split: str, sampling: str, scores: Sequence[Score]) -> Table:
    stages = tuple(dict.fromkeys(score.stage for score in scores))
    best = {stage: _best([s for s in scores if s.stage == stage], "success") for stage in stages}
    best_return = _best([score for score in scores if score.stage == stages[-1]], "mean_return")
    lines = []
    for arm in in_page_order([score.arm for score in scores]):
        mine = [score for score in scores if score.arm == arm]
        seeds = list(dict.fromkeys(score.seed for score in mine))
        for seed in seeds:
            by_stage = {score.stage: score for score in mine if score.seed == seed}
            last = by_stage.get(stages[-1])
            found = [by_stage.get(stage) for stage in stages]
            lines.append(
                Line(
                    arm=arm,
                    note=f"seed {seed}" if len(seeds) > 1 else "",
                    reference=arm in REFERENCES,
                    cells=tuple(s and Cell(s.success, s.low, s.high, s in best[s.stage]) for s in found),
                    mean_return=last and last.mean_return,
                    best_return=last in best_return,
                    steps=last and last.steps,
                    seconds=last and last.seconds,
                    episodes=last and last.episodes,
                    seeds=last and last.seeds,
                )
            )
    return Table(split, sampling, stages, tuple(lines))


def _best(scores: Sequence[Score], name: str) -> list[Score]:
    """The learned arms with the highest value (several when they tie)."""
    learned = [score for score in scores if score.arm not in REFERENCES and getattr(score, name) is not None]
    top = max((getattr(score, name) for score in learned), default=None)
    return [score for score in learned if getattr(score, name) == top]


def headline(found: Sequence[Table]) -> tuple[Table, list[Line]] | None:
    """The table that the page opens with (test before other splits) and its best learned arms on the last stage."""
    table = next((table for table in found if table.split == "test"), found[-1] if found else None)
    if table is None:
        return None
    winners = [line for line in table.lines if (cell := line.cells[-1]) is not None and cell.best]
    return (table, winners) if winners else None
