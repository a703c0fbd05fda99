"""Questions about repositories, each with the files that answer it, and their file format: JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reflectrl.config.folders import replacing, writing
from reflectrl.types import UserError


@dataclass(frozen=True)
class Question:
    """One question, and where its answer stands."""

    id: str
    repo: str
    """Name of the repository's folder in the library."""
    question: str
    gold: tuple[str, ...]
    """Paths from the repository's root; any of these files answers."""
    source: str
    """What it was made from ("docstring", "comment", "docs", "header", "commit", "llm"), or the set it comes from."""
    licence: str = ""
    """Of the repository."""
    dominant: bool = False
    """Of imported questions: whether one file clearly leads among those that the reference answer cites."""


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """The questions of a file, in its order. Keys that a question does not have are passed over.

    Raises:
        UserError: the file cannot be read, or a line is no question; then file and line number are named.
    """
    return [question_of(row, place) for row, place in rows_of(Path(path))]


def rows_of(path: Path) -> list[tuple[Any, str]]:
    """Every line of a JSON-lines file, decoded, and its place for messages; UserError where one is not JSON."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a text may hold U+0085
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{path} cannot be read: {why}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        place = f"{path}, line {number}"
        try:
            rows += [(json.loads(line), place)] if line.strip() else []
        except ValueError as error:
            raise UserError(f"{place} is no JSON: {error}") from error
    return rows


def question_of(row: Any, place: str) -> Question:
    """One decoded line as a question; UserError, naming the place, if it is none."""
    try:
        gold = row["gold"]
        texts = [row["id"], row["repo"], row["question"], row["source"], row.get("licence", "")]
        if isinstance(gold, str) or not gold or not all(isinstance(text, str) for text in [*texts, *gold]):
            raise TypeError("its values are not texts, or it has no gold file")
        identity, repo, question, source, licence = texts
        return Question(identity, repo, question, tuple(gold), source, licence, bool(row.get("dominant", False)))
    except (KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{place} is no question: {why}") from error


def write_questions(path: str | os.PathLike[str], questions: Iterable[Question]) -> None:
    """Write a file of questions; until it is complete, what was there stays. UserError if it cannot be written."""
    write_rows(Path(path), (asdict(question) for question in questions))


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines beside `path`, and put them in its place."""
    with writing(path), replacing(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
