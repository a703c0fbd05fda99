"""`reflectrl compare RUN RUN ...`: results, differing settings and learning curves of several runs, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table as Shown

from reflectrl.core.terminal import console
from reflectrl.runs.report.ancestors import is_curve_of, shifted, start_among
from reflectrl.runs.report.data import REFERENCES, Metric, Run, Score, read_run
from reflectrl.runs.report.page import asset, template, write_page
from reflectrl.runs.report.plots import CurveSection, curve_sections
from reflectrl.runs.report.svg import SERIES, Look
from reflectrl.runs.report.table import Cell, Table, tables
from reflectrl.runs.state import defaults
from reflectrl.tools.sweeps.paired import Difference, differences
from reflectrl.tools.sweeps.published import PublishedRow, against

SAME_TASKS = ("env", "eval.splits", "eval.tasks")
"""Settings that must be equal in all runs, so that their results are about the same tasks."""


@dataclass(frozen=True)
class Comparison:
    """The data of several runs, combined for a comparison.

    `settings` has a row per recipe key that differs: its values by run. In `tables` and `sections`, an arm is called
    "RUN · ARM". Arms that learn nothing appear once. `published` holds a line for each pair with a published row, and
    `lineage` a line for each run that continues another one's policy.
    """

    runs: tuple[str, ...]
    settings: Mapping[str, Sequence[str]]
    tables: Sequence[Table]
    sections: Sequence[CurveSection]
    look: Mapping[str, Look]
    warnings: tuple[str, ...]
    differences: Sequence[Difference] = ()
    published: Sequence[str] = ()
    lineage: Sequence[str] = ()


def compare(folders: Sequence[Path], called: Sequence[str], out: Path, rows: Sequence[PublishedRow] = ()) -> None:
    """Print a comparison of runs under these names, and write its page to `out`.

    Args:
        rows: published rows to compare with as well.
    """
    runs = [read_run(folder) for folder in folders]
    combined = dataclasses.replace(
        comparison(runs, called),
        differences=differences(runs, folders, called),
        published=[line for run, name in zip(runs, called, strict=True) if rows for line in against(run, name, rows)],
    )
    show(console(160), combined)
    console(160).print(f"\npage: {write_page(out, page(combined))}", soft_wrap=True)


def labels(folders: Sequence[Path]) -> list[str]:
    """Return a short name per folder: its last part, with its parent's name if two are the same."""
    last = [folder.resolve().name for folder in folders]
    qualified_names = [f"{folder.resolve().parent.name}/{name}" for folder, name in zip(folders, last, strict=True)]
    names = [qualified if last.count(name) > 1 else name for name, qualified in zip(last, qualified_names, strict=True)]
    return [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, start=1)]


def comparison(runs: Sequence[Run], called: Sequence[str]) -> Comparison:
    """Combine runs under these names."""
    scores, metrics, seen_keys = list[Score](), list[Metric](), set[tuple[str, ...]]()
    for run, name in zip(runs, called, strict=True):
        for score in run.results.summary if run.results else ():
            row_key = (score.arm, score.split, score.stage, score.sampling)
            if score.arm in REFERENCES:
                if row_key not in seen_keys:
                    scores.append(score)
                seen_keys.add(row_key)
            else:
                scores.append(dataclasses.replace(score, arm=f"{name} · {score.arm}"))
        curves = shifted(run.metrics, start_among(run, runs))
        metrics += [dataclasses.replace(metric, arm=f"{name} · {metric.arm}") for metric in curves]
    arms = dict.fromkeys([*(score.arm for score in scores), *(metric.arm for metric in metrics)])
    look = {arm: Look(i % SERIES) for i, arm in enumerate(arms)}
    settings = differing([run.recipe for run in runs])
    return Comparison(
        runs=tuple(called),
        settings=settings,
        tables=tables(scores),
        sections=curve_sections(metrics, look),
        look=look,
        warnings=tuple(doubts(runs, called, settings)),
        lineage=tuple(lineage(runs, called)),
    )


def lineage(runs: Sequence[Run], called: Sequence[str]) -> Iterator[str]:
    """Yield a line for each run whose policy was loaded from another one of the runs: where its curve begins."""
    for run, name in zip(runs, called, strict=True):
        start = start_among(run, runs)
        if start.updates:
            begin = f"update {start.updates} (episode {start.episodes:.0f})"
            parent = run.ancestors[-1]
            where = next(other for each, other in zip(runs, called, strict=True) if is_curve_of(parent, each))
            yield f"{name} continues the policy of {where} · {parent.arm}: its curve of online RL begins at {begin}."


def doubts(runs: Sequence[Run], called: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Describe what keeps the results from being comparable."""
    differing_keys = [
        key for key in settings if key.startswith(tuple(f"{name}." for name in SAME_TASKS)) or key in SAME_TASKS
    ]
    problems = [f"not the same tasks: {', '.join(differing_keys)} differ"] if differing_keys else []
    unread = [name for run, name in zip(runs, called, strict=True) if run.results is None]
    return [*problems, *(f"{name} has no results yet" for name in unread)]


def differing(recipes: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return dotted key → its value in each recipe, for the keys whose values differ. The run's name is left out.

    A key that an older version did not know has its default there.
    """
    default_values = dict(_flat(defaults()))
    flat = [default_values | dict(_flat(recipe)) for recipe in recipes]
    keys = dict.fromkeys(key for flat_recipe in flat for key in flat_recipe if key != "name")
    values = {key: [_words(flat_recipe.get(key)) for flat_recipe in flat] for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for key, value in table.items():
        dotted = f"{prefix}{key}"
        pairs += _flat(value, f"{dotted}.") if isinstance(value, Mapping) else [(dotted, value)]
    return pairs


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# ---- what is shown -------------------------------------------------------------------------------------------------


def show(out: Console, comparison: Comparison) -> None:
    """Print the settings that differ, and a table per split and sampling."""
    for warning in comparison.warnings:
        out.print(f"careful: {warning}")
    if comparison.settings:
        rich_table = Shown("key", *comparison.runs, title="settings that differ", title_justify="left")
        for key, values in comparison.settings.items():
            rich_table.add_row(key, *values)
        out.print(rich_table)
    for table in comparison.tables:
        rich_table = Shown(
            "arm", *table.stages, *table.shares, title=f"{table.split}, {table.sampling}", title_justify="left"
        )
        for line in table.lines:
            shares = ("–" if share is None else f"{100 * share:.1f} %" for share in line.shares)
            rich_table.add_row(line.arm, *map(_cell, line.cells), *shares)
        out.print(rich_table)
    show_differences(out, comparison.differences)
    for words in comparison.published:
        out.print(words, soft_wrap=True, highlight=False)


def show_differences(out: Console, paired: Sequence[Difference]) -> None:
    """Print the paired differences, with a verdict on each."""
    if not paired:
        return
    title = "paired differences of success on the same tasks, in points, with 95 % intervals"
    rich_table = Shown(
        "arm", "compared with", "tasks", "difference", "tasks × seeds", "verdict", title=title, title_justify="left"
    )
    for difference in paired:
        rich_table.add_row(
            difference.first,
            difference.second,
            f"{difference.split}, {difference.sampling}",
            points(difference),
            f"{difference.tasks} × {difference.seeds}",
            difference.verdict,
        )
    out.print(rich_table)


def points(gap: Difference) -> str:
    """Return a difference with its interval, in points."""
    return f"{100 * gap.mean:+.1f} [{100 * gap.low:.0f}, {100 * gap.high:.0f}]"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    interval = "" if cell.low is None or cell.high is None else f" [{100 * cell.low:.0f}, {100 * cell.high:.0f}]"
    return f"{'* ' if cell.best else ''}{100 * cell.success:.1f} %{interval}"


def page(comparison: Comparison) -> str:
    """Return the page as text. It loads no other files."""
    render = template("compare.html.j2", "reflectrl.tools.sweeps", cell=_cell, points=points).render
    return render(comparison=comparison, css=Markup(asset("page.css")))
