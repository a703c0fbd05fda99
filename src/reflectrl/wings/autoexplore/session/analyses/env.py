"""Analyses as a `TextEnv`: answer a question about a small project's data, or change its chart or its model's inputs.

    What if demand rises by 50 %? I need the profit.
    Files: charts/map.json, data/places.csv, data/survey.json, model/formulas.txt, model/inputs.toml
    > read model/inputs.toml
    rent = 40
    buyers = 40
    ...
    > scale buyers 1.5
    > run
    sales 60
    revenue 3600
    cost 1240
    profit 2360
    > answer 2360

A question is won by the right answer while exactly the files that it asks to change differ, as they should; a wrong
answer loses. All files are in an overlay. Nothing in them is run: `run` evaluates formulas. A step costs 1 / H.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.types import Outcome, Task, UserError
from reflectrl.wings.autoexplore.session.analyses.formulas import figures
from reflectrl.wings.autoexplore.session.analyses.making import CHANNELS, CHART, FORMULAS, Query, factor_of, project
from reflectrl.wings.autoexplore.session.analyses.table import CELL, read_table, text_of
from reflectrl.wings.autoexplore.session.analyses.teacher import AnalysesTeacher
from reflectrl.wings.autoexplore.session.analyses.words import FAMILIES, pairs
from reflectrl.wings.autoexplore.session.env import NUMBER, SETTING
from reflectrl.wings.autoexplore.session.memory import MemoryRepository
from reflectrl.wings.autoexplore.session.overlay import Overlay

ROWS_SHOWN, LINES_SHOWN, WIDTH_SHOWN = 4, 30, 200
"""Lines of a table and of another file that `read` prints, and characters of each."""
LARGEST_DIGITS = 12
"""Largest number of digits of an input."""


class Result(NamedTuple):
    """Result of the last calculation.

    Attributes:
        query: the calculation.
        figures: group, column or figure of the model → value, in the order in which they are printed.
        order: "down" or "up" if the figures were sorted, else "".
    """

    query: Query
    figures: tuple[tuple[str, Fraction], ...]
    order: str = ""

    def text(self) -> str:
        return "".join(f"{label} {text_of(figure)}\n" for label, figure in self.figures)

    def answers(self) -> list[str]:
        """Return what may be answered: the groups if there are any, else the figures."""
        if self.query.group:
            return [label for label, _ in self.figures]
        return [text_of(figure) for _, figure in self.figures]


class AnalysesEnv(TextEnv):
    """Answer questions about tables, colour a map, and ask what a model says after a change.

    Args:
        train, validation, test: tasks per split. No pair of a question and its subject is asked for in two splits.
        horizon: largest number of steps.
        split_seed: decides which pair belongs to which split.

    Raises:
        UserError: a number is out of range.

    Attributes:
        project: files and question of the task.
        overlay: the files with the changes so far.
        seen: paths of all files that were read.
        opened: path of the file that was read last; "" at first.
        where, grouping: selection and grouping of rows, as in `Query`.
        result: result of the last calculation; None if there is none, or a file has changed since.
    """

    teacher = AnalysesTeacher()
    instructions = (
        "A user asks a question about a small project, or wants its map to show something else. Read files, calculate,"
        " and answer with a result; change files only if the request says so. A wrong answer ends the task."
    )
    subgoals = ("right file", "right result")

    def __init__(
        self, train: int = 4000, validation: int = 100, test: int = 300, horizon: int = 10, split_seed: int = 0
    ) -> None:
        super().__init__(horizon)
        self.sizes, self.split_seed = {"train": train, "validation": validation, "test": test}, split_seed
        if min(*self.sizes.values(), horizon) < 1:
            raise UserError(f"analyses: horizon and split sizes must be positive, not {horizon} and {self.sizes}")

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("analyses", "split", split, SPLITS)
        require_known("analyses", "stage", stage or "full", self.stages)
        tasks = []
        for i in range(self.sizes[split]):
            family = FAMILIES[i % len(FAMILIES)]
            split_pairs = pairs(self.split_seed, family)[SPLITS.index(split)]
            asked, subject = split_pairs[i // len(FAMILIES) % len(split_pairs)]
            payload = {"family": family, "asked": asked, "subject": subject, "seed": i}
            tasks.append(Task(f"analyses-{family}-{asked}-{subject}-{i}", "analyses", payload, split))
        return tasks

    def group(self, task: Task) -> str:
        return str(task.payload["family"])

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        payload = task.payload
        self.project = project(payload["family"], payload["asked"], payload["subject"], payload["seed"])
        self.overlay = Overlay(MemoryRepository(self.project.texts))
        self.seen: tuple[str, ...] = ()
        self.opened = ""
        self.where: tuple[str, ...] = ()
        self.grouping = ""
        self.result: Result | None = None
        self._history = f"{self.project.request}\nFiles: {', '.join(self.overlay.files)}\n"

    def tables(self) -> list[str]:
        """Return the paths of all tables."""
        return [path for path in self.overlay.files if path.startswith("data/")]

    def changes(self) -> dict[str, str]:
        """Return path → text of every changed file."""
        return {change.path: self.overlay.read(change.path) for change in self.overlay.changed()}

    def is_prepared(self) -> bool:
        """Return whether the files are as asked and the last result, if there is to be one, answers the question."""
        query = self.project.query
        is_calculated = query is None or (self.result is not None and self.result.query == query)
        return is_calculated and self.changes() == self.project.changes

    def is_won(self, answer: str) -> bool:
        """Return whether the files are as asked, and this is the right answer; "" means that there is none."""
        return answer == self.project.answer and self.changes() == self.project.changes

    def apply(self, action: str) -> Outcome:
        verb, _, rest = action.partition(" ")
        was_prepared, events = self.is_prepared(), list[str]()
        if verb in ("answer", "finish"):
            self._history += f"> {action}\n"
            won = self.is_won(rest)
            return Outcome(float(won) - 1 / self.horizon, terminated=True, success=won)
        try:
            output = self._output(verb, rest)
        except UserError as error:  # a file that is not what its name says
            output = f"error: {error}\n"
        self._history += f"> {action}\n{output}"
        if verb == "read" and rest == self.project.path:
            events.append("right file")
        if self.is_prepared() and not was_prepared:
            events.append("right result")
        return Outcome(-1 / self.horizon, events=tuple(events))

    def _output(self, verb: str, rest: str) -> str:
        """Carry out an action that does not end the episode, and return its output."""
        match verb:
            case "read":
                return self._read(rest)
            case "where":
                self.where = tuple(rest.split(" "))
            case "group":
                self.grouping = rest
            case "reset":
                self.where, self.grouping = (), ""
            case "set" | "scale" | "undo":
                self._change(verb, rest)
            case "sort":
                return self._sort(rest)
            case "run":
                return self._run()
            case _:
                return self._calculate(verb, rest)
        return ""

    def _read(self, path: str) -> str:
        self.opened, self.where, self.grouping = path, (), ""
        self.seen = tuple(dict.fromkeys((*self.seen, path)))
        lines = self.overlay.read(path).splitlines()
        limit = ROWS_SHOWN if path in self.tables() else LINES_SHOWN
        shown = [line[:WIDTH_SHOWN] for line in lines[:limit]]
        if len(lines) > limit:
            shown.append(f"... {len(lines)} lines")
        return "\n".join(shown) + "\n"

    def _change(self, verb: str, rest: str) -> None:
        self.result = None  # it was calculated from other files
        if verb == "undo":
            for change in self.overlay.changed():
                self.overlay.restore(change.path)
            return
        name, _, value = rest.partition(" ")
        if verb == "set":
            former = charted(self.overlay.read(CHART))[1][name]
            self.overlay.replace(CHART, _channel(name, former), _channel(name, value))
            return
        line, amount = scalable(self.overlay.read(self.opened))[name]
        self.overlay.replace(self.opened, line, NUMBER.sub(str(int(amount * Fraction(value))), line))

    def _sort(self, order: str) -> str:
        result = self.result
        assert result is not None, "sort is legal after a result only"
        ordered = sorted(result.figures, key=lambda pair: pair[1], reverse=order == "down")
        self.result = result._replace(figures=tuple(ordered), order=order)
        return self.result.text()

    def _run(self) -> str:
        inputs = {key: Fraction(amount) for key, (_, amount) in scalable(self.overlay.read(self.opened)).items()}
        computed = figures(self.overlay.read(FORMULAS), inputs)
        self.result = Result(Query("run", self.opened), tuple(computed.items()))
        return self.result.text()

    def _calculate(self, calculation: str, column: str) -> str:
        table = read_table(self.opened, self.overlay.read(self.opened))
        if calculation == "missing":
            counts = tuple((name, Fraction(count)) for name, count in table.missing())
            self.result = Result(Query("missing", self.opened), counts)
            return self.result.text()
        query = Query(calculation, self.opened, self.where, self.grouping, column)
        rows = table.where(*self.where) if self.where else table
        if self.grouping:
            computed = rows.aggregates(calculation, column, self.grouping)
        else:
            figure = rows.aggregate(calculation, column)
            computed = [] if figure is None else [(column, figure)]
        self.result = Result(query, tuple(computed))
        return self.result.text()

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._history

    def state(self) -> str:
        return f"Open: {self.opened or 'none'}. Rows: {' '.join(self.where) or 'all'}. By: {self.grouping or 'none'}.\n"

    def legal_actions(self) -> Sequence[str]:
        """List what can be done with the open file, with the last result, and with all files."""
        actions = [f"read {path}" for path in self.overlay.files if path != self.opened]
        if self.opened in self.tables():
            actions += self._table_actions()
        if self.opened.startswith("model/inputs."):
            actions += self._model_actions()
        if self.result is not None:
            if self.result.query.group:
                actions += [f"sort {order}" for order in ("down", "up") if order != self.result.order]
            actions += [f"answer {answer}" for answer in dict.fromkeys(self.result.answers())]
        actions += self._chart_actions()
        return [*actions, *(["undo", "finish"] if self.overlay.changed() else [])]

    def _table_actions(self) -> list[str]:
        try:
            table = read_table(self.opened, self.overlay.read(self.opened))
        except UserError:
            return []
        actions = ["missing"]
        for column in table.measures():
            actions += [f"mean {column}", f"total {column}"]
        for category, values in table.categories().items():
            actions += [f"where {category} {value}" for value in values if (category, value) != self.where]
            actions += [f"group {category}"] * (category != self.grouping)
        return [*actions, *(["reset"] if self.where or self.grouping else [])]

    def _model_actions(self) -> list[str]:
        """List changes of the inputs by the percentages that the request names, and the model's run."""
        actions = ["run"]
        if self.overlay.changed():
            return actions
        for key, (_, amount) in scalable(self.overlay.read(self.opened)).items():
            for percent in dict.fromkeys(map(int, NUMBER.findall(self.project.request))):
                factors = [factor_of(100 + percent), factor_of(100 - percent), factor_of(percent)]
                exact = [factor for factor in factors if (amount * Fraction(factor)).denominator == 1]
                actions += [f"scale {key} {factor}" for factor in dict.fromkeys(exact)]
        return actions

    def _chart_actions(self) -> list[str]:
        """List new fields of the chart if the chart and its data were read, and either is open."""
        if CHART not in self.seen:
            return []
        try:
            path, fields = charted(self.overlay.read(CHART))
            if path not in self.seen or self.opened not in (CHART, path):
                return []
            columns = read_table(path, self.overlay.read(path)).measures()
        except UserError:
            return []
        pairs_of_names = product(CHANNELS, columns)
        return [f"set {channel} {column}" for channel, column in pairs_of_names if fields[channel] != column]

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        selection = self.opened, self.seen, self.where, self.grouping
        return selection, self.result, self._history, self.overlay.get_state()

    def set_state(self, state: Any) -> None:
        self.begin(self.task)
        selection, self.result, self._history, changes = state
        self.opened, self.seen, self.where, self.grouping = selection
        self.overlay.set_state(changes)


def charted(text: str) -> tuple[str, dict[str, str]]:
    """Read a chart's specification.

    Returns:
        The path of its data, and channel → field.

    Raises:
        UserError: it is no such specification.
    """
    try:
        spec = json.loads(text)
        path = spec["data"]["url"]
        fields = {channel: spec["encoding"][channel]["field"] for channel in CHANNELS}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{CHART} is not a chart: {error!r:.80}") from None
    for channel, field in fields.items():
        if not (isinstance(field, str) and CELL.fullmatch(field) and text.count(_channel(channel, field)) == 1):
            raise UserError(f"{CHART} is not a chart: its {channel} cannot be changed")
    return path, fields


def _channel(channel: str, field: str) -> str:
    """Return a channel as a chart's file writes it."""
    return f'"{channel}": {{"field": "{field}"}}'


def scalable(text: str) -> dict[str, tuple[str, int]]:
    """Return the inputs of a model that can be changed: key → line and value."""
    inputs = {}
    for match in SETTING.finditer(text):
        if len(match[2]) <= LARGEST_DIGITS and text.count(match[0]) == 1:
            inputs[match[1]] = match[0], int(match[2])
    return inputs
