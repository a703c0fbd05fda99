"""DAgger in the report: number of labelled steps after each round, and the success rate it led to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from reflectrl.core.episodes import read_episodes
from reflectrl.runs.report.data import Run
from reflectrl.runs.report.sections import Section
from reflectrl.runs.report.table import Cell, tables
from reflectrl.serving.endpoints.arms import ROUNDS

NOTE = (
    "Each pair is fine-tuned on the teaching episodes and on the student's episodes so far, in which the teacher"
    " labelled the best actions. Counts are means over seeds. Success is on the last stage, in percent with its"
    " interval. If it no longer grows with the labels, further rounds do not help."
)


class Taught(NamedTuple):
    """An episode that a pair was fine-tuned on: its number of labelled steps, whether it was won, and who played it."""

    labels: int
    won: bool
    by_student: bool


def growth(folder: Path, run: Run) -> Section | None:
    """Return a row for the arm "sft" and one for each round of DAgger that was played; None if no round was."""
    results = tables(run.results.summary if run.results else ())
    rows = []
    for arm, taught, new in _rounds(folder / "episodes"):
        won = [walk.won for walks in new for walk in walks]
        counts = (f"{mean(map(len, taught)):.0f}", _labels(taught), _labels(new) if won else "–")
        cells = [next((line.cells[-1] for line in table.lines if line.arm == arm), None) for table in results]
        rows.append((arm, *counts, f"{100 * mean(won):.1f}" if won else "–", *map(_shown, cells)))
    if not rows:
        return None
    columns = ("Arm", "Episodes", "Labelled steps", "New labels", "Student won, %")
    success = (f"Success: {table.split}, {table.sampling}" for table in results)
    return Section("Success by DAgger round", NOTE, (*columns, *success), tuple(rows))


def _rounds(folder: Path) -> Iterator[tuple[str, list[list[Taught]], list[list[Taught]]]]:
    """Yield each arm with its training episodes and the new ones among them, by seed.

    A log begins with the previous round's log, so the new episodes are the rest.
    """
    before: dict[str, int] = {}
    for arm in ROUNDS:
        logs = {path.stem.split("-seed")[1]: _read(path) for path in sorted(folder.glob(f"{arm}-seed*.jsonl"))}
        if not logs:
            return
        if not before:
            demonstrations = []
            for seed, log in logs.items():
                demonstrations.append([taught for taught in log if not taught.by_student])
                before[seed] = len(demonstrations[-1])
            yield "sft", demonstrations, []
        yield arm, [*logs.values()], [log[before.get(seed, 0) :] for seed, log in logs.items()]
        before = {seed: len(log) for seed, log in logs.items()}


def _read(path: Path) -> list[Taught]:
    taught = []
    for episode in read_episodes(path):
        labels = sum(step.label is not None for step in episode.steps)
        taught.append(Taught(labels, episode.success, episode.provenance.get("kind") == "dagger"))
    return taught


def _labels(logs: Sequence[Sequence[Taught]]) -> str:
    """Return the number of labelled steps, as a mean over seeds."""
    counts = [sum(taught.labels for taught in log) for log in logs]
    return f"{mean(counts):.0f}"


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    interval = "" if cell.low is None or cell.high is None else f" ({100 * cell.low:.1f}–{100 * cell.high:.1f})"
    return f"{100 * cell.success:.1f}{interval}"
