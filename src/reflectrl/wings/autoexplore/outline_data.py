"""Extract sections, keys and columns from data and settings: TOML, INI, YAML, JSON, CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import NamedTuple

from reflectrl.wings.autoexplore.comments import HASH, SEMICOLONS, Comments
from reflectrl.wings.autoexplore.definitions import Definition, one_line, sentence
from reflectrl.wings.autoexplore.outline_languages import TRIPLE

_SECTION = re.compile(r"[ \t]*+\[{1,2}+[ \t]*+([^\[\]\n]++)\]{1,2}+[ \t]*+(?:[#;].*+)?")
_SETTING = re.compile(r"((?:[\w.$/-]+|\"[^\"\n]+\"|'[^'\n]+')(?: [\w.$/-]+){0,5})[ \t]*[=:]")
_YAML_KEY = re.compile(r"([\w.$/-]+(?: [\w.$/-]+){0,5}|\"[^\"\n]+\"|'[^'\n]+')[ \t]*:(?=[ \t]|$)")
_REMARK = re.compile(r"[ \t][#;][ \t]*(.*)")
_TRIPLE = re.compile(TRIPLE, re.DOTALL)
_JSON_TOKEN = re.compile(r'"((?:[^"\\\n]|\\.)*+)("?)|[{}\[\]]')  # a string without an end is passed over at once
_JSON_COLON = re.compile(r"\s*+:\s*+(?:\"((?:[^\"\\\n]|\\.)*+)\")?")
_JSON_RECORDS = re.compile(r"\s*\[\s*\{")
_MOST_COLUMNS = 1000
_MOST_REMARKS = 100
_NUMBER = re.compile(r"0x[0-9a-fA-F]*|[\d.,:/ %eE+-]+")
_ABOUT = ("description", "summary", "title")
_PACKAGE_SECTIONS = ("", "project", "package", "tool.poetry", "workspace.package", "metadata", "info")


class _Key(NamedTuple):
    """Key of a JSON object."""

    start: int
    name: str
    value: str
    """Value if it is a string; otherwise ""."""


def toml_outline(text: str) -> Iterator[Definition]:
    """Yield sections and their keys."""
    return _settings(_TRIPLE.sub(lambda match: "\n" * match[0].count("\n"), text), HASH)


def ini_outline(text: str) -> Iterator[Definition]:
    """Yield sections and their keys. An indented line continues the value above."""
    return _settings(text, SEMICOLONS)


def yaml_outline(text: str) -> Iterator[Definition]:
    """Yield keys at the top level."""
    lines = text.split("\n")
    for line_number, line in enumerate(lines, 1):
        if (match := _YAML_KEY.match(line)) is not None:
            yield Definition(line_number, "key", _unquoted(match[1]), "", _doc(lines, line_number, HASH))


def json_outline(text: str, one_per_line: bool = False) -> Iterator[Definition]:
    """Yield keys of the top-level object; for a list of objects (or one per line), the keys of the first object."""
    records = one_per_line or _JSON_RECORDS.match(text) is not None
    line, reached = 1, 0
    for key in _json_keys(text):
        line, reached = line + text.count("\n", reached, key.start), key.start
        if name := one_line(key.name):
            yield Definition(line, "column" if records else "key", name)


def csv_outline(text: str, delimiter: str = "") -> Iterator[Definition]:
    """Yield the columns that the first line names; none if that line holds numbers and is therefore data."""
    line, columns = csv_header(text, delimiter)
    return (Definition(line, "column", name) for name in columns)


def csv_header(text: str, delimiter: str = "") -> tuple[int, list[str]]:
    """Return the first line (from 1) that is not a comment, and its cells if they are names: unique, no numbers."""
    lines = text.split("\n", _MOST_REMARKS)
    index = next((index for index, line in enumerate(lines[:_MOST_REMARKS]) if not line.startswith("#")), 0)
    delimiter = delimiter or max(",;\t|", key=lines[index].count)
    try:
        cells = [one_line(cell) for cell in next(csv.reader([lines[index]], delimiter=delimiter), [])]
    except csv.Error:
        return 1, []
    named = all(cell and not _NUMBER.fullmatch(cell[:100]) for cell in cells[1:]) and any(cells)
    columns = [cell for cell in cells if cell]  # the first is empty if it numbers the rows
    return index + 1, columns[:_MOST_COLUMNS] if named and len(set(columns)) == len(columns) else []


def json_about(text: str) -> str:
    """Return the description in the top-level object; "" if there is none."""
    values = {key.name: key.value for key in _json_keys(text) if key.value and key.name in _ABOUT}
    return next((sentence(values[name]) for name in _ABOUT if name in values), "")


def settings_about(text: str, outline: tuple[Definition, ...]) -> str:
    """Return the description in a TOML, INI or YAML file, or of the package it describes; "" if there is none."""
    lines = text.split("\n")
    for name in _ABOUT:
        for key in outline:
            if key.name == name and key.kind == "key" and key.parent in _PACKAGE_SECTIONS:
                value = re.split("[=:]", lines[key.line - 1], maxsplit=1)[-1].strip().strip("\"',")
                if value in ("|", ">", ">-", "|-", ""):  # the value is indented below
                    value = "\n".join(line for line in lines[key.line : key.line + 5] if line[:1].isspace())
                if description := sentence(value):
                    return description
    return ""


def _settings(text: str, comments: Comments) -> Iterator[Definition]:
    lines, section = text.split("\n"), ""
    for line_number, line in enumerate(lines, 1):
        if (match := _SECTION.fullmatch(line)) is not None and "," not in match[1]:
            section = one_line(match[1])
            yield Definition(line_number, "section", section, "", comments.above(lines, line_number))
        elif (match := _SETTING.match(line)) is not None:
            yield Definition(line_number, "key", _unquoted(match[1]), section, _doc(lines, line_number, comments))


def _doc(lines: list[str], number: int, comments: Comments) -> str:
    """Return the comment above the line, or else the one at its end; "" if there is none."""
    if above := comments.above(lines, number):
        return above
    remark = _REMARK.search(lines[number - 1][:1000])
    return sentence(remark[1]) if remark else ""


def _unquoted(name: str) -> str:
    return one_line(name.strip("\"'"))


def _json_keys(text: str) -> Iterator[_Key]:
    """Yield the keys of the first outermost object, as far as the text reaches."""
    depth, inside = 0, 0
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark in "{[":
            depth += 1
            inside = inside or (depth if mark == "{" else 0)
        elif mark in "}]":
            depth -= 1
            if inside and depth < inside:
                return
        elif inside and depth == inside and token[2] and (colon := _JSON_COLON.match(text, token.end())) is not None:
            yield _Key(token.start(), token[1], colon[1] or "")
