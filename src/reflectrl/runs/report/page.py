"""The report of a run: one self-contained HTML page, written atomically."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from reflectrl.core.config.folders import replacing, writing
from reflectrl.core.plugins import names
from reflectrl.runs.report.ancestors import caption, with_ancestors
from reflectrl.runs.report.calibrated import reliability_plots
from reflectrl.runs.report.data import Run, read_run
from reflectrl.runs.report.learned import learned_plots
from reflectrl.runs.report.plots import curve_sections, stage_plots
from reflectrl.runs.report.sections import Section, further_sections
from reflectrl.runs.report.svg import looks
from reflectrl.runs.report.table import headline, main_table_first, tables
from reflectrl.runs.report.viewer import PER_OUTCOME, Sample, sample_run, to_json

LIVE = "browser/index.html"
"""Path, within a run folder, of the exported page on which the trained players play."""


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, from its recipe, results, metrics and evaluation episodes.

    The page is self-contained. It says which parts are missing.

    Returns:
        The path of the page.

    Raises:
        UserError: the folder does not exist, or one of its files is corrupt.
    """
    run = read_run(run_folder)
    live = LIVE if (run_folder / LIVE).is_file() else ""
    page = render(run, sample_run(run_folder / "episodes"), live, further_sections(run_folder, run))
    return write_page(run_folder / "report.html", page)


def write_page(path: Path, page: str) -> Path:
    """Write a page atomically. Raises UserError if it cannot be written."""
    with writing(path), replacing(path, f".{os.getpid()}.writing", "backslashreplace") as file:
        file.write(page)
    return path


def render(run: Run, sample: Sample, live: str = "", further: Sequence[Section] = ()) -> str:
    """Render the page as text.

    Args:
        live: the address of a page on which the trained players play; "" if there is none.
        further: sections that follow the results.
    """
    curves = with_ancestors(run)
    rows, summary = (run.results.rows, run.results.summary) if run.results else ((), ())
    look = looks([score.arm for score in summary] + [metric.arm for metric in run.metrics])
    result_tables = main_table_first(tables(summary))
    script = asset("page.js")
    return template("page.html.j2", number=_number, percent=_percent, seconds=_seconds).render(
        run=run,
        name=(run.results and run.results.recipe) or run.recipe.get("name") or run.name,
        facts=facts(run),
        tables=result_tables,
        headline=headline(result_tables),
        rows=rows,
        further=further,
        look=look,
        learned=learned_plots(curves.metrics, curves.times, look),
        sections=curve_sections(curves.metrics, look),
        lineage=caption(run),
        bars=stage_plots(summary, rows, look),
        reliability=reliability_plots(rows, look),
        sample=sample,
        live=live,
        exports="export-browser" in names("verbs") and bool(run.recipe.get("env")),
        per_outcome=PER_OUTCOME,
        # `<`, `>`, `&` and quotes become \u escapes, so no text of an episode can end the element it lies in.
        episodes=htmlsafe_json_dumps(to_json(sample.episodes), allow_nan=False, separators=(",", ":")),
        css=Markup(asset("page.css")),
        script=Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def facts(run: Run) -> dict[str, str]:
    """Return the facts in the page's header: name → value, or "not recorded"."""
    results, recipe = run.results, run.recipe
    env: Mapping[str, Any] = (results and results.env) or recipe.get("env") or {}
    options = ", ".join(f"{key} = {_plain(value)}" for key, value in env.items() if key not in ("name", "horizon"))
    seeds = recipe.get("seeds") or sorted({row.seed for row in results.rows if row.seed is not None} if results else ())
    entries = {
        "Environment": str(env.get("name", "")),
        "Horizon": f"{env['horizon']} steps" if env.get("horizon") else "the environment's default" if env else "",
        "Options": options or ("none" if env else ""),
        "Seeds": ", ".join(map(str, seeds)),
        "Date": results.created if results else "",
        "Commit": results.commit if results else "",
        "Hardware": results.hardware if results else "",
    }
    return {name: value or "not recorded" for name, value in entries.items()}


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float | None, digits: int = 2) -> str:
    """Format a number for a table, or "–" for None. The minus sign is as wide as a digit."""
    if value is None:
        return "–"
    rounded = round(value, digits) + 0.0  # turns a negative zero into 0
    return f"{rounded:.{digits}f}".replace("-", "−")


def _seconds(value: float | None) -> str:
    """Format seconds with two significant digits, since an episode may take minutes or a hundredth of a second."""
    if value is None or value >= 10:
        return _number(value, 0)
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 1
    return _number(value, min(digits, 4))


def _percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}"


def template(name: str, package: str = "reflectrl.runs.report", **filters: Callable[..., str]) -> Template:
    """Load a template from a package, with further filters. The filter `safe_svg` keeps a picture unescaped."""
    env = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {"safe_svg": Markup, **filters}
    return env.from_string(asset(name, package))


def asset(name: str, package: str = "reflectrl.runs.report") -> str:
    """Return the text of a file in a package: a page, a style sheet, or a script."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
