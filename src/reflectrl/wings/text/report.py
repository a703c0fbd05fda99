"""HTML report of a text task: table, percentiles of reward, value and advantage, learning curves, completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reflectrl.core.evaluation import ATTEMPTS
from reflectrl.core.json_lines import parse_shown, read_json_lines
from reflectrl.core.plugins import one_line
from reflectrl.core.regular_files import read_regular
from reflectrl.core.types import UserError
from reflectrl.runs.report.data import read_metrics
from reflectrl.runs.report.page import asset, template, write_page
from reflectrl.runs.report.plots import Plot, curve_sections
from reflectrl.runs.report.svg import Look, drawing, looks, to_svg
from reflectrl.wings.text.generation.table import is_attempt_rate
from reflectrl.wings.text.pipeline.results import counts_in

SHOWN = 6
"""Number of prompts whose completions the page shows."""
KINDS = ("reward", "value", "advantage")
REJECTED = "rejected "
"""Beginning of the names of the percentiles of rejected answers."""
SHOWN_PERCENTILES = (0, 10, 25, 50, 75, 90, 100)
"""Percentiles in the page's table, as in the released code of Leftover Lunch."""

Line = Mapping[str, Any]


def write_text_report(run_folder: Path) -> Path:
    """Write `report.html` into the run folder of a text task. The page loads no external files.

    Returns:
        The path of the page.

    Raises:
        UserError: there are no results, or they cannot be read.
    """
    path = run_folder / "results.json"
    try:
        results = parse_shown(read_regular(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no results that can be read: {one_line(error)}") from error
    return write_page(run_folder / "report.html", render(results, run_folder))


def render(results: Mapping[str, Any], run_folder: Path) -> str:
    """Return the page as HTML."""
    metrics = read_metrics(run_folder / "metrics.jsonl")
    summary = results["summary"]
    look = looks([*(line["arm"] for line in summary), *(metric.arm for metric in metrics)])
    return template("report.html.j2", "reflectrl.wings.text", plain=_plain).render(
        results={"left_out": [], **results},
        tables=tables(summary),
        look=look,
        percentiles=[Plot(kind.capitalize(), percentile_svg(results["percentiles"], kind)) for kind in KINDS]
        if results["percentiles"]
        else [],
        shown_percentiles=SHOWN_PERCENTILES,
        percentile_rows=percentile_rows(results["percentiles"]),
        rates=[rate_plots(lines, look, f"rates-{i}-") for i, (_, lines, _) in enumerate(tables(summary))],
        bars=[Plot(title, bars_svg(lines, look, f"bars-{i}-")) for i, (title, lines, _) in enumerate(tables(summary))],
        sections=curve_sections(metrics, look),
        examples=examples(results, run_folder),
        css=Markup(asset("page.css")),
    )


def tables(summary: Sequence[Line]) -> list[tuple[str, list[Line], list[str]]]:
    """Return (title, lines, metrics) per split and sampling. Each includes the completions of the data.

    pass@k and maj@k are among the metrics of a line, but not among the names, since they have plots of their own.
    """
    sections = []
    for split, sampling in dict.fromkeys((line["split"], line["sampling"]) for line in summary if line["sampling"]):
        lines = [entry for entry in summary if entry["split"] == split and entry["sampling"] in ("", sampling)]
        names = list(dict.fromkeys(name for line in lines for name in line["metrics"] if not is_attempt_rate(name)))
        sections.append((f"{split} prompts · {sampling}", lines, names))
    return sections


def percentile_rows(spread: Sequence[Line]) -> list[tuple[str, list[float | None]]]:
    """Return the lines of the table of percentiles: a title, and the values."""
    rows = []
    for seed in spread:
        for name, values in seed.items():
            if name != "seed":
                title = f"{name.capitalize()} (seed {seed['seed']})"
                rows.append((title, [values.get(f"p{p}") for p in SHOWN_PERCENTILES]))
    return rows


def percentile_svg(spread: Sequence[Line], kind: str) -> str:
    """Plot percentiles of the training samples' reward, value or advantage, with a line per seed.

    Rejected answers, if there are any, have a dashed line.
    """
    with drawing(3.3, 2.1) as (figure, axes):
        for i, seed in enumerate(spread):
            for name, style in ((kind, "-"), (REJECTED + kind, "--")):
                if name not in seed:
                    continue
                quantiles = [key for key in seed[name] if key[0] == "p" and key[1:].isdigit()]
                axes.plot(
                    [int(key[1:]) for key in quantiles],
                    [seed[name][key] for key in quantiles],
                    color=Look(6 + i % 5).colour,
                    linewidth=1.4,
                    linestyle=style,
                    marker="o",
                    ms=2.5,
                )
        axes.set_xlabel("percentile")
        if kind == "advantage":
            axes.axhline(0, color=Look(0).colour, linewidth=0.8, linestyle=":")
        return to_svg(figure, f"percentiles-{kind}-", f"Percentiles of the {kind}")


@dataclass(frozen=True)
class RatePlot(Plot):
    """A plot of pass@k or maj@k over k, with its numbers: the values of k, and per line its arm and its rates."""

    counts: Sequence[int]
    rows: Sequence[tuple[str, Sequence[float | None]]]


def rate_plots(lines: Sequence[Line], look: Mapping[str, Look], prefix: str) -> list[RatePlot]:
    """Return the plots of pass@k and of maj@k over k; none where each prompt has a single completion."""
    plots = []
    for beginning in ATTEMPTS:
        counts = counts_in(lines, beginning)
        if len(counts) < 2:
            continue
        rows = []
        for line in lines:
            rates = [line["metrics"].get(f"{beginning}{k}") for k in counts]
            rows.append((f"{line['arm']} {line['checkpoint']}".rstrip(), rates))
        svg = _rates_svg(lines, beginning, counts, look, f"{prefix}{beginning[:-1]}-")
        plots.append(RatePlot(f"{beginning}k", svg, counts, rows))
    return plots


def _rates_svg(
    lines: Sequence[Line], beginning: str, counts: Sequence[int], look: Mapping[str, Look], prefix: str
) -> str:
    """Draw a line per arm, of its best checkpoint. The axis of k is logarithmic."""
    with drawing(3.3, 2.1) as (figure, axes):
        for line in lines:
            rates = {k: line["metrics"][f"{beginning}{k}"] for k in counts if f"{beginning}{k}" in line["metrics"]}
            if line["checkpoint"] == "last" or not rates:
                continue
            colour = look[line["arm"]].colour
            axes.plot(list(rates), list(rates.values()), color=colour, linewidth=1.4, marker="o", ms=2.5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(counts), [str(k) for k in counts])
        axes.set_xlabel("k")
        axes.set_ylim(-0.02, 1.02)
        return to_svg(figure, prefix, f"{beginning}k over k")


def bars_svg(lines: Sequence[Line], look: Mapping[str, Look], prefix: str) -> str:
    """Plot the mean reward of every arm with its interval."""
    with drawing(3.8, 0.2 * len(lines) + 0.5) as (figure, axes):
        for y, line in enumerate(lines):
            mean, low, high = (line[key] for key in ("reward", "low", "high"))
            axes.barh(y, mean, height=0.7, color=look[line["arm"]].colour, alpha=0.65, linewidth=0)
            error_bars = [[max(0, mean - low)], [max(0, high - mean)]]
            axes.errorbar(mean, y, xerr=error_bars, color=Look(1).colour, capsize=2, linewidth=1)
        axes.set_yticks(range(len(lines)), [f"{line['arm']} {line['checkpoint']}".rstrip() for line in lines])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        return to_svg(figure, prefix, "Mean reward")


def examples(results: Mapping[str, Any], run_folder: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return a few prompts with the completions of each arm's best checkpoint of the first seed."""
    rows = [row for row in results["rows"] if row["checkpoint"] in ("", "best") and row["sampling"]]
    if not rows:
        return []
    first = [row for row in rows if all(row[key] == rows[0][key] for key in ("seed", "split", "sampling"))]
    by_prompt: dict[str, list[tuple[str, str]]] = {}
    for row in first:
        name = f"{row['arm']}-seed{row['seed']}-{row['checkpoint'] or 'only'}-{row['split']}-{row['sampling']}.jsonl"
        path = run_folder / "completions" / name
        for _, sample in islice(read_json_lines(path, parse_shown), SHOWN) if path.is_file() else ():
            by_prompt.setdefault(sample["prompt"], []).append((row["arm"], sample["completion"]))
    return list(by_prompt.items())


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
