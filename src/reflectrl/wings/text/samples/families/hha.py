"""Helpful and harmless assistance: pairs of dialogues that differ in the last answer, or rows with rewards.

Two forms are read: "chosen" and "rejected" dialogues in one piece, as in Anthropic/hh-rlhf (Bai et al. 2022,
arXiv 2204.05862), and the "prefix", "suffix", "reward" rows that PRO (Song et al., AAAI 2024) made of them.

Training records with an answer that ends in a colon are left out, as in Leftover Lunch (Baheti et al., ICLR 2024),
since such answers break off ("Here are some:"). Other splits keep all records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.families.sources import Source, records
from reflectrl.wings.text.samples.families.store import Entry, Family
from reflectrl.wings.text.samples.forms import ranked
from reflectrl.wings.text.samples.rows import BadRowError, LeftOutError, Row, parsed, text
from reflectrl.wings.text.samples.sample import Sample, group_of


def read(record: Any, name: str, source: Source, style: str) -> Iterator[Entry]:
    """Read the two or more answers of a record. Dialogues with the same first turn stay in one split."""
    row = parsed(record)
    if "prefix" in row and "suffix" in row:
        samples = ranked(row, name, None)
    elif "chosen" in row and "rejected" in row:
        samples = _pair(row, name)
    else:
        raise BadRowError("unknown columns", f"{', '.join(row) or 'none'} (known: prefix, suffix; chosen, rejected)")
    if source.split == "train" and any(sample.completion.rstrip().endswith(":") for sample in samples):
        raise LeftOutError("training records with an answer that ends in a colon")
    first = dialogue.split(samples[0].prompt)[0][1]
    yield Entry(samples, source.fixed, first)


def _pair(row: Row, name: str) -> list[Sample]:
    """Return both answers as samples: the preferred answer has reward 1, the other answer 0."""
    chosen, rejected = _turns(row, "chosen"), _turns(row, "rejected")
    if chosen[:-1] != rejected[:-1]:
        raise LeftOutError("dialogues that differ before their last turn")
    prompt = dialogue.render(chosen[:-1])
    group = group_of(prompt)
    answers = (("chosen", chosen, 1.0), ("rejected", rejected, 0.0))
    return [
        Sample(f"{name}.{key}", group, prompt, dialogue.answer(turns[-1][1]), reward, {"preferred": reward})
        for key, turns, reward in answers
    ]


def _turns(row: Row, key: str) -> dialogue.Turns:
    turns = dialogue.split(text(row, key))
    if len(turns) < 2 or turns[-1][0] != dialogue.ASSISTANT:
        raise BadRowError(f"{key} must be a dialogue that ends with the assistant", f"not {row[key]!r:.60}")
    if not turns[-1][1]:
        raise BadRowError(f"empty answer in {key}")
    return turns


FAMILY = Family("hha", (".jsonl", ".json"), ("labelled",), lambda source: bool(source.split), records, read)
