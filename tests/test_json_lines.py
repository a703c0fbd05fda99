"""The reader of JSON lines: numbers in its errors, a killed writer's last line, and any text that JSON can hold."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.json_lines import LongLineError, bounded_lines, parse_json, read_json, read_json_lines
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


# ---- files that are not what their names say, or have no end --------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (gzip.compress(b'{"a": 1}\n', mtime=0), "a gzip file"),
        (b"PAR1" + bytes(90) + b"PAR1", "a Parquet file"),
        (bytes.fromhex("28b52ffd") + bytes(20), "a Zstandard file"),
        (lzma.compress(b"{}\n"), "an xz file"),
        (bz2.compress(b"{}\n"), "a bzip2 file"),
        (b"PK\x03\x04" + bytes(60), "a zip archive"),
        (b"ARROW1\0\0" + bytes(60), "an Arrow file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file"),
        (b"SQLite format 3\0" + bytes(60), "an SQLite database"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
        (b"<!DOCTYPE html>\n<p>404</p>\n", "a web page"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"prompt,completion,reward\na, b,1\n", "separated values"),
        (b"prompt\tcompletion\na\tb\n", "separated values"),
        (b'"prompt";"completion"\r\n"a";"b"\r\n', "separated values"),
    ],
)
def test_a_file_of_another_format_is_named_with_what_to_do(path: Path, content: bytes, name: str) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}.*; \w+") as caught:
        list(read_json_lines(path, parse_json))
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("lines") / "values.jsonl"
    path.write_bytes(content)
    with suppress(UserError):
        list(read_json_lines(path, parse_json))


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/full", "/dev/tty", "/proc/kmsg", "pipe", "."])
def test_a_file_without_an_end_is_refused_at_once(tmp_path: Path, path: Path, target: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path.symlink_to(target)
    with pytest.raises(UserError, match=r"log\.jsonl: "):
        list(read_json_lines(path, parse_json))
    with pytest.raises(OSError):
        read_json(path)


def test_a_pipe_that_the_shell_has_opened_is_read() -> None:
    program = "from reflectrl.core.json_lines import *; import pathlib, sys\n"
    program += "print(list(read_json_lines(pathlib.Path(sys.argv[1]), parse_json)))"
    reader = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    command = f"{reader} <(echo 7) && echo 8 | {reader} /dev/stdin"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "[(1, 7)]\n[(1, 8)]\n"


def test_a_line_or_a_file_that_is_too_long_is_refused(path: Path) -> None:
    path.write_bytes(b"1\n" + b"2" * 5000)
    with path.open("rb") as file, pytest.raises(LongLineError, match="more than 4,000 bytes") as caught:
        list(bounded_lines(file, 4000))
    assert caught.value.line_number == 2
    with pytest.raises(OSError, match="more than 4,000 bytes"):
        read_json(path, 4000)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 300_000, "[" * 100_000 + "]" * 100_000])
def test_deep_nesting_is_an_ordinary_error(path: Path, deep: str) -> None:
    path.write_text(deep)
    with pytest.raises(ValueError, match="too deeply nested"):
        read_json(path)
    with pytest.raises(UserError, match="too deeply nested"):
        list(read_json_lines(path, parse_json))
