"""Further tables of the report, which packages add through entry points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectrl.core.plugins import names, resolve
from reflectrl.runs.report.data import Run


@dataclass(frozen=True)
class Section:
    """A section of the page with one table.

    Attributes:
        title: its heading.
        note: an explanation for the reader of the table.
        columns: the headings. All columns but the first hold numbers.
        rows: one cell per column. If the first is the name of an arm, it gets the arm's colour.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def further_sections(folder: Path, run: Run) -> list[Section]:
    """Return the sections that installed packages add to the report of a run.

    An entry point of the group "reflectrl.report_sections" names a function of the run folder and the `Run` that was
    read from it. It returns a `Section`, or None if it has nothing to show.

    Raises:
        UserError: a file of the run is corrupt.
    """
    sections = [resolve("report_sections", name)(folder, run) for name in names("report_sections")]
    return [section for section in sections if section is not None]
