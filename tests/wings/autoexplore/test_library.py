"""Files of questions and libraries of repositories: what is read back, and what is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.library import open_library
from reflectrl.wings.autoexplore.questions import Question, read_questions, write_questions

QUESTION = Question("tool-0", "tool", "where are retries configured?", ("retry.py",), "docs", "MIT")
LINE = {"id": "tool-0", "repo": "tool", "question": "why?", "gold": ["retry.py"], "source": "docs"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A library of one repository and one question."""
    (tmp_path / "repos" / "tool").mkdir(parents=True)
    (tmp_path / "repos" / "tool" / "retry.py").write_text("how often requests are tried again\n", encoding="utf-8")
    entry = {"name": "tool", "version": "1.0", "origin": "somewhere", "licence": "MIT", "split": "train"}
    (tmp_path / "repos.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    (tmp_path / "questions").mkdir()
    for split in ("train", "asked-elsewhere", "test"):
        write_questions(tmp_path / "questions" / f"{split}.jsonl", [QUESTION])
    return tmp_path


def test_a_library_is_read(folder: Path) -> None:
    library = open_library(str(folder))
    assert library.splits == ("train", "test", "asked-elsewhere")
    assert library.questions("train") == (QUESTION,)
    assert library.repository("tool").files == ("retry.py",)
    assert library.repository("tool") is library.repository("tool")
    assert library.repos["tool"].licence == "MIT"
    assert open_library(str(folder)) is library


def test_a_repository_may_lie_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "repos" / "tool").rename(elsewhere / "tool")
    entry = {"name": "tool", "split": "train", "path": str(elsewhere / "tool")}
    (folder / "repos.jsonl").write_text(json.dumps(entry), encoding="utf-8")
    assert open_library(str(folder)).repository("tool").root == elsewhere / "tool"


def test_the_default_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(folder.parent))
    with pytest.raises(UserError, match=r"reflectrl data autoexplore --download"):
        open_library()
    folder.rename(folder.parent / "autoexplore")
    assert open_library().questions("train") == (QUESTION,)


def test_what_is_not_there_is_said(folder: Path) -> None:
    library = open_library(str(folder))
    with pytest.raises(UserError, match="no questions 'validation'; there are train, test, asked-elsewhere"):
        library.questions("validation")
    with pytest.raises(UserError, match="no repository 'other'"):
        library.repository("other")
    write_questions(folder / "questions" / "test.jsonl", [Question("a", "other", "why?", ("x",), "docs")])
    with pytest.raises(UserError, match=r"a asks about 'other', which is not in repos.jsonl"):
        library.questions("test")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", ":2: not valid JSON"),
        ("[]", ":2: not a question"),
        ("{}", ":2: not a question: it has no 'gold'"),
        (json.dumps(LINE | {"gold": []}), "no gold file"),
        (json.dumps(LINE | {"gold": "a.py"}), ":2: not a question"),
        (json.dumps(LINE | {"gold": [3]}), "not texts"),
        (json.dumps(LINE | {"question": None}), "not texts"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=why) as refused:
        read_questions(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("entry", [[], {}, {"name": "../x", "split": "train"}, {"name": 1, "split": "train"}])
def test_a_line_that_is_no_repository_is_named(folder: Path, entry: Any) -> None:
    (folder / "repos.jsonl").write_text(json.dumps(entry), encoding="utf-8")
    with pytest.raises(UserError, match=r"repos.jsonl:1: "):
        open_library(str(folder))


@given(st.lists(st.builds(Question, *[st.text(min_size=1)] * 3, st.tuples(st.text()), st.text(), st.text())))
def test_questions_are_read_as_they_were_written(tmp_path_factory: Any, questions: list[Question]) -> None:
    path = tmp_path_factory.mktemp("questions") / "asked.jsonl"
    write_questions(path, questions)
    assert read_questions(path) == questions
