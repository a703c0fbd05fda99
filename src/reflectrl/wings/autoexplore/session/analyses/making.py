"""Small projects with a question about them: two tables, a chart, a model with its inputs, and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from reflectrl.core.types import named_seed
from reflectrl.wings.autoexplore.session.analyses.formulas import figures
from reflectrl.wings.autoexplore.session.analyses.table import Table, text_of, written_table
from reflectrl.wings.autoexplore.session.analyses.words import (
    CATEGORIES,
    FALLS,
    FIGURES,
    HIGHEST,
    LOWEST,
    MEANS,
    MEASURES,
    PARAMETERS,
    REQUESTS,
    RISES,
    TABLES,
    TOTALS,
)
from reflectrl.wings.autoexplore.session.making import line_of, written

CHART, FORMULAS = "charts/map.json", "model/formulas.txt"
CHANNELS = ("color", "size")
ROWS = 12
INPUT_FORMATS = ("toml", "ini", "yaml", "json")


class Query(NamedTuple):
    """A calculation.

    Attributes:
        calculation: "mean" or "total" of a column, "missing" values of all columns, or a "run" of the model.
        path: the table, or the file of the model's inputs.
        where: category and value of the rows that count; () for all of them.
        group: category for each of whose values there is a result; "" for a single result.
        column: the measure; "" if there is none.
    """

    calculation: str
    path: str
    where: tuple[str, ...] = ()
    group: str = ""
    column: str = ""


class Project(NamedTuple):
    """Files of a project, and what is asked about them.

    Attributes:
        texts: path → text.
        request: the user's words.
        subject: their word for the measure or the input.
        name: its name in the files.
        path: the file that holds it: a table, or the model's inputs.
        edit: the action that makes the change that is asked for; "" if nothing is to be changed.
        changes: path → text of every file that has to differ at the end.
        query: the calculation whose result answers the question; None if a changed chart is all.
        order: "down" or "up" if the first group in this order is the answer; "" otherwise.
        label: the line of the result that is the answer: a column or a figure of the model; "" otherwise.
        answer: the answer as the calculation prints it; "" if a changed chart is all.
    """

    texts: Mapping[str, str]
    request: str
    subject: str
    name: str
    path: str
    edit: str
    changes: Mapping[str, str]
    query: Query | None
    order: str
    label: str
    answer: str


def project(family: str, asked: str, subject: str, seed: int) -> Project:
    """Make the project of a task.

    Args:
        family: one of `FAMILIES`.
        asked, subject: a pair of `pairs`.
        seed: decides everything else.
    """
    rng = np.random.default_rng(named_seed("analyses", family, asked, subject, seed))
    if family == "what-if":
        return _what_if(rng, asked, subject)
    noun = _drawn(rng, MEASURES[subject].nouns)
    column = _drawn(rng, MEASURES[subject].columns)
    tables, path = _tables(rng, subject, column)
    if family == "chart":
        return _chart(rng, asked, noun, column, tables, path)
    words = {"noun": noun}
    if family == "missing":
        query, order, label, answer = Query("missing", path), "", column, dict(tables[path].missing())[column]
    else:
        query, order, label, answer = _aggregate(rng, family, asked, column, tables, path, words)
    request = _drawn(rng, REQUESTS[family]).format(**words)
    texts = _texts(rng, tables, _spec(rng, tables)) | _model(rng)[0]
    return Project(dict(sorted(texts.items())), request, noun, column, path, "", {}, query, order, label, answer)


def _aggregate(
    rng: np.random.Generator,
    family: str,
    asked: str,
    column: str,
    tables: dict[str, Table],
    path: str,
    words: dict[str, str],
) -> tuple[Query, str, str, str]:
    """Ask for the first group ("top"), or for the figure of a selection ("filter").

    Returns:
        `Project.query`, `order`, `label` and `answer`. `words` gets the words of the request, and the table is drawn
        again until its answer is clear.
    """
    calculation, _, order = asked.partition("-")
    categories = tables[path].categories()
    category = words["category"] = _drawn(rng, tuple(categories))
    words["average"] = _drawn(rng, MEANS if calculation == "mean" else TOTALS)
    if family == "top":
        words["extreme"] = _drawn(rng, HIGHEST if order == "down" else LOWEST)
        while not _is_clear(tables[path], category, column, order):
            tables[path] = _table(rng, tables[path].columns)
        answer = _first(tables[path], category, column, calculation, order)
        return Query(calculation, path, group=category, column=column), order, "", answer
    value = words["value"] = _drawn(rng, categories[category])
    figure = tables[path].where(category, value).aggregate(calculation, column)
    assert figure is not None, "four rows, and at most three values are missing"
    return Query(calculation, path, where=(category, value), column=column), "", column, text_of(figure)


def _chart(
    rng: np.random.Generator, channel: str, noun: str, column: str, tables: Mapping[str, Table], path: str
) -> Project:
    """Ask for a column in a channel of the map that shows another column."""
    measures = tables[path].measures()
    fields = dict.fromkeys(CHANNELS, _drawn(rng, [name for name in measures if name != column]))
    other = next(name for name in CHANNELS if name != channel)
    # The other channel may show the column that is asked for, or the file would tell which column is missing.
    fields[other] = _drawn(rng, [name for name in measures if name != fields[channel]])
    texts = _texts(rng, tables, _written_spec(path, fields)) | _model(rng)[0]
    changes = {CHART: _written_spec(path, {**fields, channel: column})}
    request = _drawn(rng, REQUESTS[channel]).format(noun=noun)
    edit = f"set {channel} {column}"
    return Project(dict(sorted(texts.items())), request, noun, column, path, edit, changes, None, "", "", "")


def _what_if(rng: np.random.Generator, change: str, parameter: str) -> Project:
    """Ask for a figure of the model after a change of an input, by which the figure changes."""
    percent = int(change)
    affected: list[str] = []
    while not affected:
        texts, keys, values = _model(rng)
        path = next(path for path in texts if path != FORMULAS)
        key = keys[parameter]
        new = {**values, key: values[key] * (100 + percent) // 100}
        before, after = (figures(texts[FORMULAS], _fractions(inputs)) for inputs in (values, new))
        distinct = len(set(after.values())) == len(after)
        affected = [name for name in after if distinct and after[name] != before[name]]
    figure = _drawn(rng, affected)
    noun = _drawn(rng, PARAMETERS[parameter].nouns)
    request = _drawn(rng, REQUESTS["what-if"]).format(
        parameter=noun,
        change=_drawn(rng, RISES if percent > 0 else FALLS).format(n=abs(percent)),
        figure=_drawn(rng, FIGURES[figure]),
    )
    kind = path.rpartition(".")[2]
    changes = {path: texts[path].replace(line_of(kind, key, values[key]), line_of(kind, key, new[key]), 1)}
    tables, _ = _tables(rng, "salary", _drawn(rng, MEASURES["salary"].columns))
    texts |= _texts(rng, tables, _spec(rng, tables))
    edit, query = f"scale {key} {factor_of(100 + percent)}", Query("run", path)
    answer = text_of(after[figure])
    return Project(dict(sorted(texts.items())), request, noun, key, path, edit, changes, query, "", figure, answer)


def factor_of(percent: int) -> str:
    """Write a percentage as a factor: 150 is "1.5"."""
    return f"{percent / 100:g}"


# ---- files -----------------------------------------------------------------------------------------------------------


def _tables(rng: np.random.Generator, subject: str, column: str) -> tuple[dict[str, Table], str]:
    """Make two tables of two categories and three measures each; return them and the path that holds the column."""
    others = [name for name in MEASURES if name != subject]
    drawn = [_drawn(rng, MEASURES[others[i]].columns) for i in rng.permutation(len(others))[:5]]
    groups = [drawn[:3], [*drawn[3:], column]]
    names = sorted(TABLES[i] for i in rng.permutation(len(TABLES))[:2])
    paths = [f"data/{name}.{_drawn(rng, ('csv', 'json'))}" for name in names]
    tables = {}
    for path, i in zip(paths, rng.permutation(2), strict=True):
        categories = [tuple(CATEGORIES)[j] for j in rng.permutation(len(CATEGORIES))[:2]]
        measures = [groups[i][j] for j in rng.permutation(3)]
        tables[path] = _table(rng, (*categories, *measures))
    return tables, next(path for path in paths if column in tables[path].columns)


def _table(rng: np.random.Generator, columns: Sequence[str]) -> Table:
    """Fill a table. Its measures miss different numbers of values, and every value of a category occurs."""
    filled = []
    counts = list(rng.permutation(4))
    for column in columns:
        if column in CATEGORIES:
            values = [CATEGORIES[column][i % 3] for i in range(ROWS)]
            filled.append([values[i] for i in rng.permutation(ROWS)])
            continue
        cells = [str(rng.integers(10, 100)) for _ in range(ROWS)]
        for i in rng.permutation(ROWS)[: counts.pop()]:
            cells[i] = ""
        filled.append(cells)
    return Table(tuple(columns), tuple(zip(*filled, strict=True)))


def _is_clear(table: Table, category: str, column: str, order: str) -> bool:
    """Return whether all groups print different figures, and the first by mean is not also the first by total."""
    first = set()
    for calculation in ("mean", "total"):
        results = table.aggregates(calculation, column, category)
        if len({text_of(figure) for _, figure in results}) < len(results):
            return False
        first.add(_first(table, category, column, calculation, order))
    return len(first) == 2


def _first(table: Table, category: str, column: str, calculation: str, order: str) -> str:
    """Return the group that comes first when they are sorted "down" or "up"."""
    results = table.aggregates(calculation, column, category)
    return sorted(results, key=lambda result: result[1], reverse=order == "down")[0][0]


def _spec(rng: np.random.Generator, tables: Mapping[str, Table]) -> str:
    """Write a chart of either table."""
    path = _drawn(rng, tuple(tables))
    measures = tables[path].measures()
    fields = [measures[i] for i in rng.permutation(len(measures))[:2]]
    return _written_spec(path, dict(zip(CHANNELS, fields, strict=True)))


def _written_spec(path: str, fields: Mapping[str, str]) -> str:
    """Write a chart's specification in the manner of Vega-Lite."""
    encoding = {channel: {"field": fields[channel]} for channel in CHANNELS}
    spec = {"mark": "circle", "data": {"url": path}, "encoding": encoding}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in spec.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _texts(rng: np.random.Generator, tables: Mapping[str, Table], spec: str) -> dict[str, str]:
    return {CHART: spec} | {path: written_table(path, table) for path, table in tables.items()}


def _model(rng: np.random.Generator) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Make a model; return its files, parameter → key, and key → value."""
    keys = {parameter: _drawn(rng, measure.columns) for parameter, measure in PARAMETERS.items()}
    lowest = {"demand": 1, "price": 3, "wages": 1, "rent": 1, "capacity": 1}
    # Every percentage of a multiple of 20 is whole.
    amounts = {parameter: 20 * (lowest[parameter] + int(rng.integers(4))) for parameter in PARAMETERS}
    order = [tuple(PARAMETERS)[i] for i in rng.permutation(len(PARAMETERS))]
    values = {keys[parameter]: amounts[parameter] for parameter in order}
    formulas = (
        "sales = min({demand}, {capacity})\n"
        "revenue = sales * {price}\n"
        "cost = sales * {wages} + {rent}\n"
        "profit = revenue - cost\n"
    ).format(**keys)
    kind = _drawn(rng, INPUT_FORMATS)
    return {FORMULAS: formulas, f"model/inputs.{kind}": written(kind, values)}, keys, values


def _fractions(inputs: Mapping[str, int]) -> dict[str, Fraction]:
    return {key: Fraction(value) for key, value in inputs.items()}


def _drawn(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[int(rng.integers(len(items)))]
