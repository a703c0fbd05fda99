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
    groups: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.split, score.sampling), []).append(score)
    return [_table(split, sampling, group) for (split, sampling), group in groups.items()]


def _table(split: str, sampling: str, scores: Sequence[Score]) -> Table:
    stages = tuple(dict.fromkeys(score.stage for score in scores))
    best = list[Score]()
    for stage in stages:
        best += _best([score for score in scores if score.stage == stage], "success")
    best_return = _best([score for score in scores if score.stage == stages[-1]], "mean_return")
    names = tuple(dict.fromkeys(name for score in scores if score.stage == stages[-1] for name in score.shares))
    lines = []
    for arm in in_page_order([score.arm for score in scores]):
        mine = [score for score in scores if score.arm == arm]
        seeds = list(dict.fromkeys(score.seed for score in mine))  # more than one only if they were not pooled
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
    """Return the trained arms with the highest value: several if they tie, none if random play is as good."""
    valued = [score for score in scores if getattr(score, name) is not None]
    learned = [score for score in valued if score.arm not in REFERENCES]
    by_chance = [getattr(score, name) for score in valued if score.arm == "random"]
    top = max((getattr(score, name) for score in learned), default=None)
    if top is None or (by_chance and top <= max(by_chance)):
        return []
    return [score for score in learned if getattr(score, name) == top]


def main_table_first(tables: Sequence[Table]) -> list[Table]:
    """Return the tables with the main one first: greedy play of the test split, or what comes nearest to it."""
    return sorted(tables, key=lambda table: (table.split != "test", table.sampling != "greedy"))


def headline(tables: Sequence[Table]) -> tuple[Table, list[Line]] | None:
    """Return the first table and its best trained arms; None if there are none."""
    if not tables:
        return None
    winners = [line for line in tables[0].lines if (cell := line.cells[-1]) is not None and cell.best]
    return (tables[0], winners) if winners else None
