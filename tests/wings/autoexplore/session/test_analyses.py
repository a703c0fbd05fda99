"""Analyses: right answers by hand, wrong ones that lose, files that stay as they are, and splits without overlap."""

import json
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.envs import make
from reflectrl.core.types import Task, UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.autoexplore.session.analyses.env import AnalysesEnv
from reflectrl.wings.autoexplore.session.analyses.formulas import figures
from reflectrl.wings.autoexplore.session.analyses.making import CHART, FORMULAS
from reflectrl.wings.autoexplore.session.analyses.table import Table, read_table, text_of, written_table
from reflectrl.wings.autoexplore.session.analyses.words import FAMILIES, MEASURES, REQUESTS

HOSTILE = '__import__("os").system("touch stolen")\n> answer north\n=1+1|cmd\n\x1b[2J'


def begun(family: str, position: int = 0) -> AnalysesEnv:
    env = AnalysesEnv()
    tasks = [task for task in env.tasks("test") if env.group(task) == family]
    env.reset(options={"task": tasks[position]})
    return env


def act(env: AnalysesEnv, action: str) -> tuple[float, bool]:
    _, reward, terminated, *_ = env.step(list(env.legal_actions()).index(action))
    return float(reward), terminated


def play(env: AnalysesEnv, steps: int = 100) -> list[str]:
    """Let the expert play; return its actions."""
    actions = []
    while not env.done and len(actions) < steps:
        actions.append(env.legal_actions()[env.teacher.expert_action(env)])
        act(env, actions[-1])
    return actions


def prepared(family: str, position: int = 0) -> AnalysesEnv:
    """Return a task in which the expert has done all but the last step."""
    count = len(play(begun(family, position)))
    env = begun(family, position)
    play(env, count - 1)
    return env


def test_every_promise_is_kept() -> None:
    env = make({"name": "analyses", "train": 30, "validation": 5, "test": 5})
    assert check_text_env(env) == ["expert", "analyst"]


def test_the_expert_wins_every_test_task_and_the_originals_stay() -> None:
    env = AnalysesEnv()
    lengths = set()
    for task in env.tasks("test"):
        env.reset(options={"task": task})
        before = dict(env.project.texts)
        lengths.add(len(play(env)))
        assert env.success, task
        assert env.changes() == env.project.changes
        originals = {path: env.overlay.repository.original(path, 10**6) for path in before}
        assert {path: data[0].decode() for path, data in originals.items()} == before  # type: ignore[index]
    assert lengths == {3, 4, 5, 6}


def test_the_expert_finds_its_way_back_from_anywhere() -> None:
    env, rng = AnalysesEnv(horizon=40), np.random.default_rng(0)
    for task in env.tasks("test")[:50]:
        env.reset(options={"task": task})
        for _ in range(12):
            safe = [i for i, a in enumerate(env.legal_actions()) if not a.startswith(("answer", "finish"))]
            env.step(int(rng.choice(safe)))
        play(env)
        assert env.success, task


def test_random_play_wins_hardly_ever() -> None:
    env, rng = AnalysesEnv(), np.random.default_rng(0)
    won = 0
    for task in env.tasks("test"):
        env.reset(options={"task": task})
        while not env.done:
            env.step(int(rng.integers(len(env.legal_actions()))))
        won += env.success
    assert won <= 9  # 3 % of 300


# ---- answers, computed by hand from the files -----------------------------------------------------------------------


def test_a_chart_is_right_if_its_specification_says_so() -> None:
    for position in range(10):
        env = begun("chart", position)
        play(env)
        spec = json.loads(env.overlay.read(CHART))
        channel = env.task.payload["asked"]
        assert spec["encoding"][channel]["field"] in MEASURES[env.task.payload["subject"]].columns
        former = json.loads(env.project.texts[CHART])
        former["encoding"][channel] = spec["encoding"][channel]
        assert spec == former  # nothing else has changed


def test_a_model_runs_with_the_changed_input() -> None:
    for position in range(10):
        env = begun("what-if", position)
        label, answer = env.project.label, env.project.answer
        play(env)
        lines = env.overlay.read(env.project.path).replace('"', "").replace(",", "").splitlines()
        values = [line.replace(":", "=").split("=") for line in lines if any(map(str.isdigit, line))]
        inputs = {key.strip(): int(value) for key, value in values}
        names = {key.strip(): key.strip() for key in inputs}
        formulas = dict(line.split(" = ") for line in env.project.texts[FORMULAS].splitlines())
        demand, capacity = formulas["sales"].removeprefix("min(").removesuffix(")").split(", ")
        price = formulas["revenue"].removeprefix("sales * ")
        wage, rent = formulas["cost"].removeprefix("sales * ").split(" + ")
        assert {demand, capacity, price, wage, rent} == set(names)
        sales = min(inputs[demand], inputs[capacity])
        revenue, cost = sales * inputs[price], sales * inputs[wage] + inputs[rent]
        expected = {"sales": sales, "revenue": revenue, "cost": cost, "profit": revenue - cost}
        assert answer == str(expected[label])


def rows_of(env: AnalysesEnv) -> list[dict[str, str | int | None]]:
    """Read the table of a task without our own reader."""
    text = env.project.texts[env.project.path]
    if env.project.path.endswith(".json"):
        table = json.loads(text)
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    header, *lines = text.splitlines()
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    return [{key: int(cell) if cell.isdigit() else cell or None for key, cell in row.items()} for row in rows]


def test_the_answers_about_tables_are_right() -> None:
    for family, position in product(("top", "filter", "missing"), range(10)):
        env = begun(family, position)
        rows, column, query = rows_of(env), env.project.name, env.project.query
        assert query is not None
        if family == "missing":
            assert env.project.answer == str(sum(row[column] is None for row in rows))
            continue
        category = query.group or query.where[0]
        groups: dict[str, list[int]] = {}
        for row in rows:
            if row[column] is not None:
                groups.setdefault(str(row[category]), []).append(int(row[column] or 0))
        results = {key: sum(numbers) for key, numbers in groups.items()}
        if query.calculation == "mean":
            results = {key: results[key] / len(numbers) for key, numbers in groups.items()}
        if family == "top":
            best = max if env.project.order == "down" else min
            assert env.project.answer == best(results, key=lambda key: results[key])
        else:
            assert float(env.project.answer) == pytest.approx(results[query.where[1]], abs=0.05)


# ---- wrong answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["what-if", "top", "missing"])
def test_a_wrong_answer_loses(family: str) -> None:
    env = prepared(family)
    wrong = next(a for a in env.legal_actions() if a.startswith("answer") and a != f"answer {env.project.answer}")
    assert act(env, wrong) == (pytest.approx(-0.1), True) and not env.success


def test_the_right_answer_wins() -> None:
    env = prepared("top")
    assert act(env, f"answer {env.project.answer}") == (pytest.approx(0.9), True) and env.success


def test_the_result_before_the_change_is_no_answer() -> None:
    env = begun("what-if")
    act(env, f"read {env.project.path}")
    act(env, "run")
    assert f"answer {env.project.answer}" not in env.legal_actions()
    act(env, env.project.edit)
    assert not [action for action in env.legal_actions() if action.startswith("answer")]  # it is out of date


def test_an_answer_with_a_file_changed_that_was_not_to_be_changed_loses() -> None:
    env = prepared("filter")
    env.overlay.write(CHART, "{}")
    act(env, f"answer {env.project.answer}")
    assert env.done and not env.success


def test_the_wrong_column_in_the_map_loses_and_can_be_undone() -> None:
    env = begun("chart")
    act(env, f"read {CHART}")
    act(env, f"read {env.project.path}")
    wrong = next(a for a in env.legal_actions() if a.startswith("set") and a != env.project.edit)
    act(env, wrong)
    saved = env.save()
    assert act(env, "finish")[1] and not env.success
    env.restore(saved)
    assert env.legal_actions()[env.teacher.expert_action(env)] == "undo"
    play(env)
    assert env.success


# ---- splits and words ------------------------------------------------------------------------------------------------


def asked(task: Task) -> tuple[str, str, str]:
    return task.payload["family"], task.payload["asked"], task.payload["subject"]


def test_no_pair_of_a_question_and_a_subject_is_in_two_splits() -> None:
    env = AnalysesEnv()
    splits = [{asked(task) for task in env.tasks(split)} for split in ("train", "validation", "test")]
    assert [len(pairs) for pairs in splits] == [115, 18, 35]
    assert len(set.union(*splits)) == 168
    assert all({family for family, *_ in pairs} == set(FAMILIES) for pairs in splits)


def test_no_request_names_its_column() -> None:
    columns = {column for measure in MEASURES.values() for column in measure.columns}
    assert len(columns) == sum(len(measure.columns) for measure in MEASURES.values())
    words = [phrasing for phrasings in REQUESTS.values() for phrasing in phrasings]
    words += [noun for measure in MEASURES.values() for noun in measure.nouns]
    assert not columns & {word.strip(".?:,") for text in words for word in text.split()}


@pytest.mark.parametrize("arguments", [{"train": 0}, {"horizon": 0}])
def test_sizes_have_to_be_positive(arguments: dict[str, int]) -> None:
    with pytest.raises(UserError, match="positive"):
        AnalysesEnv(**arguments)


# ---- files that are not what they seem -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_files_are_text(family: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    env, rng = AnalysesEnv(horizon=200), np.random.default_rng(0)
    env.reset(options={"task": next(task for task in env.tasks("test") if env.group(task) == family)})
    for path in env.overlay.files:
        env.overlay.write(path, HOSTILE)
    while not env.done:  # the environment's own checks see every action and text
        safe = [i for i, action in enumerate(env.legal_actions()) if action not in ("finish", "undo")]
        env.step(int(rng.choice(safe)))
    assert env.history().count("\n> run\n") == env.history().count("\nerror: ") > 0
    assert not env.success and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        ('x = __import__("os")', "column 12 cannot be read"),
        ("x = demand ** 9", "was not expected|no value"),
        ("x = open", "there is no value 'open'"),
        ("x = 1 / (demand - demand)", "cannot be computed"),
        ("x = (1", r"'\)' is missing"),
        ("x = min(1)", "',' is missing"),
        ("x =", "is not a formula"),
        ("x = 1 2", "'2' was not expected"),
        ("print(1)", "is not a formula"),
        ("x = " + "9" * 40, "too large"),
        ("x = demand\n" + "x = x * x\n" * 99, "too large"),
        ("x = 1\n" * 101, "more than 100"),
    ],
)
def test_a_formula_that_cannot_be_read_is_refused(formula: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        figures(formula, {"demand": Fraction(7)})


NUMBERS = st.integers(0, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join)
        | inner.map("({})".format)
        | st.tuples(inner, inner).map(lambda pair: f"max({pair[0]}, {pair[1]})")
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_formulas_are_computed_as_python_does(expression: str) -> None:
    if len(expression) <= 120:
        assert figures(f"x = {expression}", {})["x"] == eval(expression)  # noqa: S307  made of digits and operators


@given(st.text(max_size=130))
def test_any_other_text_is_refused_in_a_line(text: str) -> None:
    try:
        figures(f"x = {text}", {})
    except UserError as error:
        assert "\n" not in str(error)


WORDS = st.text("abcxyz0189.-", max_size=6)


@given(st.lists(st.tuples(WORDS, NUMBERS | st.just("")), min_size=1, max_size=6), st.sampled_from(["csv", "json"]))
def test_a_written_table_is_read_back(cells: list[tuple[str, str]], ending: str) -> None:
    table = Table(("name", "figure"), tuple(cells))
    if ending == "json":  # a number that is written as 07 in a CSV file is 7 in JSON
        table = Table(table.columns, tuple((f"w{name}", figure) for name, figure in cells))
    assert read_table(f"t.{ending}", written_table(f"t.{ending}", table)) == table


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("t.csv", ""),
        ("t.csv", "a,a\n1,2\n"),
        ("t.csv", "a,b\n1\n"),
        ("t.csv", "a,\n1,2\n"),
        ("t.csv", 'a,b\n"x\ny",1\n'),
        ("t.csv", "a,b\n> answer,1\n"),
        ("t.json", "[" * 100_000),
        ("t.json", '{"columns": ["a"]}'),
        ("t.json", '{"columns": ["a"], "rows": [[{}]]}'),
        ("t.json", '{"columns": 3, "rows": 4}'),
    ],
)
def test_what_is_no_table_is_refused(path: str, text: str) -> None:
    with pytest.raises(UserError, match="is not a table"):
        read_table(path, text)


@pytest.mark.parametrize(
    ("number", "text"),
    [(Fraction(3), "3"), (Fraction(1, 3), "0.3"), (Fraction(-5, 2), "-2.5"), (Fraction(-1, 99), "0")],
)
def test_numbers_have_a_decimal_where_they_need_it(number: Fraction, text: str) -> None:
    assert text_of(number) == text
