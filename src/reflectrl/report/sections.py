"""Further tables of the page: methods bring them through entry points, and the core names none of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectrl.plugins import names, resolve
from reflectrl.report.data import Run


@dataclass(frozen=True)
class Section:
    """A section of the page with one table.

    Attributes:
        title: its heading.
        note: what a reader has to know to read the table.
        columns: headings; those from the second on are of numbers.
        rows: a cell per column; the first, if it is the name of an arm, gets the arm's look.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def further_sections(folder: Path, run: Run) -> list[Section]:
    """The sections that installed packages add to the report of a run.

    An entry point of the group "reflectrl.report_sections" names a function of the run folder and what was read of it,
    which returns a `Section`, or None where it has nothing to say.

    Raises:
        UserError: a file of the run is corrupt.
    """
    found = [resolve("report_sections", name)(folder, run) for name in names("report_sections")]
    return [section for section in found if section is not None]
