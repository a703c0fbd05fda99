"""Lists of what `data autoexplore` leaves out, stage by stage, each entry with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from reflectrl.wings.autoexplore.questions import write_rows

FOLDER = "dropped"
"""Folder of the lists, in the library."""
UNITS = {"repos": "repositories", "questions": "sources", "tasks": "drafts", "import": "questions"}
"""Stage → what it drops: repositories; files, answers or commits that give no question; drafts; imported questions."""


class Dropped(NamedTuple):
    """Repository, question or source of questions that a stage left out."""

    name: str
    """Repository, REPOSITORY:FILE for a draft, or the id of an imported question."""
    stage: str
    """One of `UNITS`."""
    reason: str
    question: str = ""
    """Text of the question, if there was one."""


def write_dropped(store: Path, name: str, dropped: Sequence[Dropped]) -> list[Path]:
    """Write a list, NAME.jsonl, in the order in which things were left out. An empty list has no file.

    Returns:
        The path of the list within the library, or nothing.

    Raises:
        UserError: the file cannot be written.
    """
    path = Path(FOLDER, f"{name}.jsonl")
    if not dropped:
        (store / path).unlink(missing_ok=True)  # from an earlier command
        return []
    (store / FOLDER).mkdir(parents=True, exist_ok=True)
    write_rows(store / path, (_row(entry) for entry in dropped))
    return [path]


def _row(entry: Dropped) -> dict[str, str]:
    row = {"name": entry.name, "stage": entry.stage, "reason": entry.reason}
    if entry.question:
        row["question"] = entry.question
    return row


def summary(dropped: Iterable[Dropped]) -> Iterator[str]:
    """Yield a line for each reason, the most frequent first."""
    counts = Counter((entry.stage, entry.reason) for entry in dropped)
    for (stage, reason), count in counts.most_common():
        yield f"left out: {count} {UNITS[stage]}, {reason}"
