"""The reader of JSON lines: numbers in its errors, a killed writer's last line, and any text that JSON can hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.types import UserError

VALUES = st.lists(st.one_of(st.integers(), st.text(), st.dictionaries(st.text(), st.booleans())))


@given(VALUES)
def test_every_value_comes_back_with_the_number_of_its_line(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "values.jsonl"
    text = "".join(f"{json.dumps(value, ensure_ascii=False)}\n\n" for value in values)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    rows = list(read_json_lines(path, parse_json, skip_blank=True))
    assert rows == [(2 * i + 1, value) for i, value in enumerate(values)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_a_damaged_line_is_refused_by_its_number_or_skipped(path: Path) -> None:
    path.write_text('{"a": 1}\nnot\n{"a": 3}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"log\.jsonl:2: no row: Expecting value.*; remove it"):
        list(read_json_lines(path, parse_json, "no row", "remove it"))
    assert list(read_json_lines(path, parse_json, damaged="skip")) == [(1, {"a": 1}), (3, {"a": 3})]


def test_a_killed_writers_last_line_is_refused_or_skipped_and_an_undamaged_one_is_read(path: Path) -> None:
    path.write_text('{"a": 1}\n{"a"', encoding="utf-8")
    with pytest.raises(UserError, match=r"log\.jsonl:2: half-written line"):
        list(read_json_lines(path, parse_json))
    assert list(read_json_lines(path, parse_json, half_written="skip")) == [(1, {"a": 1})]
    path.write_text('{"a": 1}\n{"a": 2}', encoding="utf-8")
    assert [value for _, value in read_json_lines(path, parse_json)] == [{"a": 1}, {"a": 2}]


def test_a_missing_key_bytes_that_are_no_text_and_depth_are_damage(path: Path) -> None:
    for line, why in (
        (b"{}", "it has no 'a'"),
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"[" * 100_000, "too deeply nested"),
    ):
        path.write_bytes(line + b"\n")
        with pytest.raises(UserError, match=why):
            list(read_json_lines(path, lambda text: parse_json(text)["a"]))


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(UserError, match=r"log\.jsonl: No such file"):
        list(read_json_lines(path, parse_json))
