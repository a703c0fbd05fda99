"""Small tables of CSV and JSON files. They are read and counted; nothing in them is run."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from reflectrl.core.types import UserError

CELL = re.compile(r"[A-Za-z0-9_.-]{0,40}")
"""Text of a cell or the name of a column. Nothing else could be part of an action, which is a single short line."""
NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")
LARGEST = 10_000
"""Largest number of rows."""


class Table(NamedTuple):
    """Rows of a file.

    Attributes:
        columns: their names.
        rows: cells as text; "" where a value is missing.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def cells(self, column: str) -> list[str]:
        """Return the cells of a column that are not missing."""
        i = self.columns.index(column)
        return [row[i] for row in self.rows if row[i]]

    def measures(self) -> list[str]:
        """Return the columns whose values are all numbers."""
        return [column for column in self.columns if all(map(NUMBER.fullmatch, self.cells(column)))]

    def categories(self) -> dict[str, list[str]]:
        """Return the other columns, each with its different values in the order of the rows."""
        measures = self.measures()
        return {column: list(dict.fromkeys(self.cells(column))) for column in self.columns if column not in measures}

    def where(self, column: str, value: str) -> Table:
        """Return the rows with a value in a column."""
        i = self.columns.index(column)
        return self._replace(rows=tuple(row for row in self.rows if row[i] == value))

    def missing(self) -> list[tuple[str, str]]:
        """Return each measure with the number of rows in which it is missing."""
        return [(column, str(len(self.rows) - len(self.cells(column)))) for column in self.measures()]

    def aggregate(self, calculation: str, column: str) -> Fraction | None:
        """Return the "mean" or "total" of a measure; None if it has no value."""
        numbers = [Fraction(cell) for cell in self.cells(column)]
        if not numbers:
            return None
        return sum(numbers, Fraction()) / (len(numbers) if calculation == "mean" else 1)

    def aggregates(self, calculation: str, column: str, group: str) -> list[tuple[str, Fraction]]:
        """Return the "mean" or "total" of a measure for each value of a category that has any."""
        results = []
        for value in dict.fromkeys(self.cells(group)):
            figure = self.where(group, value).aggregate(calculation, column)
            if figure is not None:
                results.append((value, figure))
        return results


def read_table(path: str, text: str) -> Table:
    """Read a table of a CSV file, or of a JSON file with "columns" and "rows".

    Raises:
        UserError: the file is no such table, or a cell could not be part of an action.
    """
    try:
        if path.endswith(".json"):
            content = json.loads(text)
            header, rows = content["columns"], content["rows"]
        else:
            lines = list(csv.reader(text.splitlines(keepends=True), strict=True))
            header, rows = lines[0], lines[1:]
        columns, cells = _row(header), tuple(_row(row) for row in rows)
    except (csv.Error, ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(f"{path} is not a table: {error!r:.80}") from None
    if len(set(columns)) < len(columns) or "" in columns or len(cells) > LARGEST:
        raise UserError(f"{path} is not a table: its columns need different names, and at most {LARGEST:,} rows")
    if any(len(row) != len(columns) for row in cells):
        raise UserError(f"{path} is not a table: its rows differ in length")
    return Table(columns, cells)


def _row(cells: Sequence[Any]) -> tuple[str, ...]:
    texts = tuple("" if cell is None else str(cell) for cell in cells)
    for text in texts:
        if not CELL.fullmatch(text):
            raise ValueError(f"the cell {text[:40]!r}")
    return texts


def written_table(path: str, table: Table) -> str:
    """Write a table as the ending of its path says, a row per line."""
    if not path.endswith(".json"):
        return "".join(",".join(row) + "\n" for row in (table.columns, *table.rows))
    measures = {table.columns.index(column) for column in table.measures()}
    lines = []
    for row in table.rows:
        values: list[str | int | None] = list(row)
        for i in measures:
            values[i] = int(row[i]) if row[i] else None
        lines.append(json.dumps(values))
    return f'{{"columns": {json.dumps(table.columns)},\n"rows": [\n' + ",\n".join(lines) + "\n]}\n"


def text_of(number: Fraction) -> str:
    """Write a number with one decimal, or none if it is whole."""
    tenths = round(abs(number) * 10)
    sign = "-" if number < 0 and tenths else ""
    return f"{sign}{tenths // 10}" + (f".{tenths % 10}" if tenths % 10 else "")
