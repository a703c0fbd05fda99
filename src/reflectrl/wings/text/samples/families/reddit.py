"""Reddit replies: a comment and what was answered, in two sets, of upvoted and of downvoted answers.

Read are CSV files with the columns "parent_text" and "text" and, if there are any, "score" and "subreddit"; the
name of a file tells which set it is (comments_positive.csv, comments_negative.csv). The replies have no reward yet: it
is what classifiers say of them.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from typing import Any

from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.families.sources import Source
from reflectrl.wings.text.samples.families.store import Entry, Family
from reflectrl.wings.text.samples.rows import BadRowError, LeftOutError, checked, finite, opened, to_float
from reflectrl.wings.text.samples.sample import Sample, group_of

SETS = dict.fromkeys(("positive", "pos", "upvoted", "up"), "positive")
SETS |= dict.fromkeys(("negative", "neg", "downvoted", "down"), "negative")
GONE = ("", "[deleted]", "[removed]", "nan")
"""What stands where a comment is no longer there."""


def set_of(source: Source) -> str:
    """Which of the two sets a file's name, or that of a folder above it, tells; "" if none."""
    for part in reversed(source.name.split("/")):
        told = [SETS[word] for word in re.split("[^a-z]+", part.lower()) if word in SETS]
        if told:
            return told[-1]
    return ""


def records(source: Source) -> Iterator[tuple[str, Any]]:
    """The rows of a CSV file with their places: the line on which each ends."""
    with opened(source.path) as file:
        stream = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.DictReader(stream, strict=True)
        while True:
            try:
                row: Any = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                row = BadRowError("broken CSV", str(error))
            yield f"{source.path}:{rows.reader.line_num}", row


def read(record: Any, name: str, source: Source, style: str) -> Iterator[Entry]:
    """One reply. Those to one comment are kept in one split, whether upvoted or not."""
    if isinstance(record, BadRowError):
        raise record
    parent, reply = _said(record, "parent_text"), _said(record, "text")
    prompt = dialogue.render([(dialogue.HUMAN, parent)], style=style)
    meta: dict[str, Any] = {"votes": set_of(source)}
    if record.get("score"):
        meta["score"] = finite(to_float(record["score"], "score"), "score")
    if record.get("subreddit"):
        meta["subreddit"] = checked(record["subreddit"], "subreddit")
    sample = Sample(name, group_of(prompt), prompt, dialogue.answer(reply, style), math.nan, meta=meta)
    yield Entry([sample], source.fixed, parent, (set_of(source),))


def _said(row: dict[str | None, Any], key: str) -> str:
    if key not in row:
        columns = ", ".join(str(column) for column in row if column is not None)
        raise BadRowError("unknown columns", f"{columns} (needed: parent_text, text)")
    if row[key] is None or None in row:
        raise BadRowError("not as many fields as columns")
    said = row[key].strip()
    if said.lower() in GONE:
        raise LeftOutError(f"no {key}: deleted, removed or empty")
    return checked(said, key)


FAMILY = Family("reddit", (".csv",), dialogue.STYLES, lambda source: bool(set_of(source)), records, read)
