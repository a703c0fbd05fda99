"""Reading of samples from files of any supported form, line by line or element by element."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.core.episodes import from_line
from reflectrl.core.types import Episode, UserError
from reflectrl.wings.text.samples import forms
from reflectrl.wings.text.samples.rows import BadRowError, Gate, parsed, records
from reflectrl.wings.text.samples.sample import Sample, Samples
from reflectrl.wings.text.samples.steps import StepReading, from_episode

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """Options of reading.

    Attributes:
        missing_reward: reward of rows that have none; None refuses them. `math.nan` accepts samples to be scored later.
        steps: options for turning episodes into samples.
    """

    missing_reward: float | None = None
    steps: StepReading = field(default_factory=StepReading)


class Form(NamedTuple):
    """A form of rows, recognised by its columns.

    Attributes:
        read: maps (parsed row, name, options) to samples.
        parse: maps a line, or an element of a JSON list, to the parsed row.
        oddity: returns a note about something unusual in a row that is read anyway; "" if there is nothing.
    """

    columns: tuple[str, ...]
    read: Callable[[Any, str, Reading], Iterable[Sample]]
    parse: Callable[[Any], Any] = parsed
    oddity: Callable[[Any], str] = lambda row: ""


def _episode(record: Any) -> Episode:
    try:
        return from_line(record.decode("utf-8") if isinstance(record, bytes) else json.dumps(record))
    except ValueError as error:
        raise BadRowError("corrupt episode", str(error)) from error


FORMS = (
    Form(("schema", "task", "steps"), lambda episode, name, how: from_episode(episode, name, how.steps), _episode),
    Form(("prefix", "suffix"), lambda row, name, how: forms.ranked(row, name, how.missing_reward)),
    Form(
        ("prompt_or_input_text", "references"), lambda row, name, how: forms.normalised(row, name, how.missing_reward)
    ),
    Form(("chosen", "rejected"), lambda row, name, how: forms.preference(row, name), oddity=forms.preference_oddity),
    Form(("prompt", "completion"), lambda row, name, how: forms.plain(row, name, how.missing_reward)),
)
"""Supported forms. A row has the first form whose columns it has. The first good row decides the form of a file."""


def read_samples(path: Path, skip_bad: bool = False, reading: Reading = Reading()) -> Samples:  # noqa: B008
    """Read the samples of a file into memory. A folder's .jsonl and .jsonl.gz files are read in order of their names.

    A form is recognised by its columns: our own rows, HHA rows, normalised rows, TRL's columns, episode logs
    (docs/offline-data.md). Equal prompts share one string in memory.

    Args:
        skip_bad: leave bad rows out and count them in `.skipped`, instead of refusing the file.

    Raises:
        UserError: the file cannot be read, has no supported form or no sample, or a row is bad (the error names file
            and line).
    """
    gate = Gate(skip_bad)
    prompts: dict[str, str] = {}
    samples = []
    for sample in stream_samples(path, gate, reading):
        prompt = prompts.setdefault(sample.prompt, sample.prompt)
        samples.append(sample if prompt is sample.prompt else replace(sample, prompt=prompt))
    if not samples:
        why = "; ".join(f"{reason} ({rows.count}, first at {rows.first[0]})" for reason, rows in gate.skipped.items())
        raise UserError(f"{path}: not one sample{why and f'; left out: {why}'}")
    for words, rows in gate.notes.items():
        LOG.warning("reflectrl: %s: %d rows: %s (first: %s)", path, rows.count, words, ", ".join(rows.first))
    return Samples(tuple(samples), gate.skipped)


def stream_samples(path: Path, gate: Gate, reading: Reading = Reading()) -> Iterator[Sample]:  # noqa: B008
    """Yield the samples that `read_samples` returns one by one, keeping only their ids in memory.

    Rows that are left out, and notes about unusual rows, are counted in `gate`.
    """
    seen: set[str] = set()
    for file in files_of(path):
        form: Form | None = None
        name = file.name.partition(".")[0]
        for record_number, location, record in records(file):
            try:
                form = form or form_of(parsed(record))
                row = form.parse(record)
                samples = list(form.read(row, f"{name}:{record_number}", reading))
                ids = [sample.id for sample in samples]
                if duplicates := [key for i, key in enumerate(ids) if key in seen or key in ids[:i]]:
                    raise BadRowError("duplicate id", repr(duplicates[0])[:60])
                seen.update(ids)
            except BadRowError as error:
                gate.refuse(location, error)
            else:
                if words := form.oddity(row):
                    gate.note(location, words)
                yield from samples


def form_of(row: dict[str, Any]) -> Form:
    """Return the form of a row, from its columns; BadRowError if it has no supported form."""
    for form in FORMS:
        if all(column in row for column in form.columns):
            return form
    known_columns = "; ".join(", ".join(form.columns) for form in FORMS)
    raise BadRowError("unknown columns", f"{', '.join(row) or 'none'} (known: {known_columns})")


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or the data files of a folder; UserError if the folder has none."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz")))
    if not files:
        raise UserError(f"{path}: no .jsonl file in this folder")
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: it is not a regular file")
    return files
