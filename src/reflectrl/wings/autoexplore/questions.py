"""Questions about repositories with the files that answer them, and their file format: JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reflectrl.core.config.folders import replacing, writing
from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.types import UserError


@dataclass(frozen=True)
class Question:
    """Question about a repository, and the files that answer it."""

    id: str
    repo: str
    """Name of the repository's folder in the library."""
    question: str
    gold: tuple[str, ...]
    """Paths from the repository's root. Each of these files answers the question."""
    source: str
    """Source of the question ("docstring", "comment", "docs", "header", "commit", "llm"), or the imported set."""
    licence: str = ""
    """Licence of the repository."""
    dominant: bool = False
    """For imported questions: True if the reference answer clearly relies on one file more than on others."""


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Read the questions of a file, in its order. Unknown keys are ignored.

    Raises:
        UserError: the file cannot be read, or a line is not a question. The message names the file and the line.
    """
    return [question_of(row, location) for row, location in rows_of(Path(path))]


def rows_of(path: Path) -> list[tuple[Any, str]]:
    """Decode each line of a JSON-lines file; return pairs (value, location for messages).

    Raises:
        UserError: the file cannot be read, or a line is not valid JSON.
    """
    rows = read_json_lines(path, parse_json, "not valid JSON", skip_blank=True)
    return [(row, f"{path}:{line_number}") for line_number, row in rows]


def question_of(row: Any, location: str, answered: bool = True) -> Question:
    """Convert a decoded line to a question.

    Args:
        row: decoded line.
        location: its file and line, for messages.
        answered: refuse a question without a gold file.

    Raises:
        UserError: it is not a question.
    """
    try:
        gold = row["gold"]
        texts = [row["id"], row["repo"], row["question"], row["source"], row.get("licence", "")]
        if (
            isinstance(gold, str)
            or (answered and not gold)
            or not all(isinstance(text, str) for text in [*texts, *gold])
        ):
            raise TypeError("its values are not texts, or it has no gold file")
        identity, repo, question, source, licence = texts
        return Question(identity, repo, question, tuple(gold), source, licence, bool(row.get("dominant", False)))
    except (KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{location}: not a question: {why}") from error


def write_questions(path: str | os.PathLike[str], questions: Iterable[Question]) -> None:
    """Write a file of questions atomically; raise UserError if it cannot be written."""
    write_rows(Path(path), (asdict(question) for question in questions))


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines to a temporary file beside `path`, then replace `path` with it."""
    with writing(path), replacing(path) as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
