"""Helpful and harmless assistance: pairs of dialogues that differ in the last answer, or rows with rewards.

Two forms are read: "chosen" and "rejected" dialogues in one piece, as in Anthropic/hh-rlhf (Bai et al. 2022,
arXiv 2204.05862), and the "prefix", "suffix", "reward" rows that PRO (Song et al., AAAI 2024) made of them.

Training records with an answer that ends in a colon are left out, as in Leftover Lunch (Baheti et al., ICLR 2024),
since such answers break off ("Here are some:"). Other splits keep all records.

The released code writes a training file without such records itself: cleaner_train.json, beside train.json, which is
then not read. Its bad_test_indices.json lists test records that no judge should see. They are marked in `meta`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.core.json_lines import read_json
from reflectrl.core.types import UserError
from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.families.sources import Source, records
from reflectrl.wings.text.samples.families.store import Entry, Family
from reflectrl.wings.text.samples.forms import ranked
from reflectrl.wings.text.samples.rows import BadRowError, EmptyTextError, LeftOutError, Row, parsed, text
from reflectrl.wings.text.samples.sample import Sample, group_of

CLEANED = "cleaner_"
"""Beginning of the name of a file that replaces another one in the same folder."""
UNJUDGED_RECORDS = "bad_test_indices"
"""Name of the files with the records that no judge should see."""
UNJUDGED = "unjudged"
"""Key in a sample's `meta` for such a record."""


def read(record: Any, name: str, source: Source, style: str) -> Iterator[Entry]:
    """Read the two or more answers of a record. Dialogues with the same first turn stay in one split."""
    row = parsed(record)
    if "prefix" in row and "suffix" in row:
        samples = ranked(row, name, None, style)
    elif "chosen" in row and "rejected" in row:
        samples = _pair(row, name, style)
    else:
        raise BadRowError("unknown columns", f"{', '.join(row) or 'none'} (known: prefix, suffix; chosen, rejected)")
    if source.split == "train" and any(sample.completion.rstrip().endswith(":") for sample in samples):
        raise LeftOutError("training records with an answer that ends in a colon")
    index = int(name.rpartition(":")[2]) - 1
    if index in _unjudged(source.path.parent / f"{UNJUDGED_RECORDS}.json").get(source.path.name, ()):
        samples = [replace(sample, meta={**sample.meta, UNJUDGED: True}) for sample in samples]
    first = dialogue.split(samples[0].prompt)[0][1]
    yield Entry(samples, source.fixed, first)


@functools.lru_cache(maxsize=16)
def _unjudged(path: Path) -> dict[str, frozenset[int]]:
    """Return, by file, the indices of the records that no judge should see; {} if there is no such list.

    Raises:
        UserError: the list cannot be read.
    """
    if not path.is_file():
        return {}
    try:
        return {name: frozenset(map(int, indices)) for name, indices in read_json(path).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} must map names of files to lists of indices") from error


def set_aside(sources: Sequence[Source]) -> dict[str, str]:
    """Return, by name, why a file is not data: a cleaned file replaces it, or it lists records."""
    names, reasons = {source.name for source in sources}, {}
    for source in sources:
        folder, _, name = source.name.rpartition("/")
        cleaned = f"{folder}/{CLEANED}{name}" if folder else f"{CLEANED}{name}"
        if cleaned in names:
            reasons[source.name] = f"{CLEANED}{name} replaces it"
        elif name == UNJUDGED_RECORDS:
            reasons[source.name] = "it lists test records that no judge should see"
    return reasons


def _pair(row: Row, name: str, style: str) -> list[Sample]:
    """Return both answers as samples: the preferred answer has reward 1, the other answer 0."""
    chosen, rejected = _turns(row, "chosen"), _turns(row, "rejected")
    if chosen[:-1] != rejected[:-1]:
        raise LeftOutError("dialogues that differ before their last turn")
    prompt = dialogue.render(chosen[:-1], style=style)
    group = group_of(prompt)
    answers = (("chosen", chosen, 1.0), ("rejected", rejected, 0.0))
    return [
        Sample(f"{name}.{key}", group, prompt, dialogue.answer(turns[-1][1], style), reward, {"preferred": reward})
        for key, turns, reward in answers
    ]


def _turns(row: Row, key: str) -> dialogue.Turns:
    turns = dialogue.split(text(row, key))
    if len(turns) < 2 or turns[-1][0] != dialogue.ASSISTANT:
        kind = BadRowError if len(turns) < 2 else LeftOutError  # some published dialogues end with the human
        raise kind(f"{key} must be a dialogue that ends with the assistant", f"not {row[key]!r:.60}")
    if not turns[-1][1]:
        raise EmptyTextError(f"empty answer in {key}")
    return turns


FAMILY = Family(
    "hha",
    (".jsonl", ".json"),
    ("labelled", "guanaco"),
    lambda source: bool(source.split),
    records,
    read,
    set_aside,
)
