"""Reddit comments and their replies, in a set of upvoted and a set of downvoted replies.

The CSV files have the columns "parent_text" and "text", and optionally "score" and "subreddit". The name of a file
tells its set (comments_positive.csv, comments_negative.csv). The replies have no reward yet. Classifiers give it later.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from typing import Any, cast

from reflectrl.core.file_kinds import HEAD_BYTES, other_format
from reflectrl.core.json_lines import bounded_lines
from reflectrl.core.types import UserError
from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.families.sources import Source
from reflectrl.wings.text.samples.families.store import Entry, Family
from reflectrl.wings.text.samples.rows import BadRowError, LeftOutError, checked, finite, opened, to_float
from reflectrl.wings.text.samples.sample import Sample, group_of

SETS = dict.fromkeys(("positive", "pos", "upvoted", "up"), "positive")
SETS |= dict.fromkeys(("negative", "neg", "downvoted", "down"), "negative")
GONE = ("", "[deleted]", "[removed]", "nan")
"""Placeholders for comments that no longer exist."""


def set_of(source: Source) -> str:
    """Return the set ("positive" or "negative") in the name of a file or of its nearest folder; "" if none."""
    for part in reversed(source.name.split("/")):
        sets = [SETS[word] for word in re.split("[^a-z]+", part.lower()) if word in SETS]
        if sets:
            return sets[-1]
    return ""


def records(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield ("file:line", row) of a CSV file, where the line is the last line of the row."""
    with opened(source.path) as file:
        if format_and_advice := other_format(cast(Any, file).peek(HEAD_BYTES)[:HEAD_BYTES], is_table=True):
            raise UserError(f"{source.path}: {format_and_advice}")
        lines = (line.decode("utf-8", "surrogateescape") for line in bounded_lines(file))
        rows = csv.DictReader((line.removeprefix("\ufeff") for line in lines), strict=True)
        while True:
            try:
                row: Any = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                row = BadRowError("broken CSV", str(error))
            yield f"{source.path}:{rows.reader.line_num}", row


def read(record: Any, name: str, source: Source, style: str) -> Iterator[Entry]:
    """Read a reply. All replies to a comment stay in one split, upvoted or not."""
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
    text = row[key].strip()
    if text.lower() in GONE:
        raise LeftOutError(f"no {key}: deleted, removed or empty")
    return checked(text, key)


FAMILY = Family("reddit", (".csv",), dialogue.STYLES, lambda source: bool(set_of(source)), records, read)
