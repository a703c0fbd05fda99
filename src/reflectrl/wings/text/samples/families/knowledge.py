"""Dialogue grounded in knowledge: the answer should be faithful to a given sentence of knowledge.

Three forms are read: Wizard of Wikipedia (Dinan et al. 2019, arXiv 1811.01241), a JSON list of objects with "dialog";
FaithDial (Dziri et al. 2022, arXiv 2204.10757), a JSON list of objects with "utterances"; and FaithDial turn by turn,
JSON lines with "history", "knowledge" and "response". The answers have no reward yet. Classifiers give it later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.dialogue import ASSISTANT, HUMAN, Turns
from reflectrl.wings.text.samples.families.sources import Source, records
from reflectrl.wings.text.samples.families.store import Entry, Family
from reflectrl.wings.text.samples.rows import BadRowError, LeftOutError, Row, items, mapping, parsed, text
from reflectrl.wings.text.samples.sample import Sample, group_of

WOW, FAITHDIAL, BOTH = "wow", "faithdial", "both"
UNUSED = "no_passages_used"
"""Placeholder in Wizard of Wikipedia for turns in which the wizard used no knowledge."""


def read(record: Any, name: str, source: Source, style: str) -> Iterator[Entry | LeftOutError]:
    """Read the answers of a dialogue. Answers without knowledge are left out. A dialogue stays in one split."""
    row = parsed(record)
    if "dialog" in row:
        kind, answers = WOW, list(_wizard(row))
    elif "utterances" in row:
        kind, answers = FAITHDIAL, [_faithful(_object(turn)) for turn in items(row, "utterances")]
    elif "history" in row and "response" in row:
        kind, answers = FAITHDIAL, [_faithful(row)]
    else:
        known = "dialog; utterances; history, knowledge, response"
        raise BadRowError("unknown columns", f"{', '.join(row) or 'none'} (known: {known})")
    for k, (turns, known, answer) in enumerate(answers):
        if not turns or not known:
            yield LeftOutError("answers before anybody has spoken" if not turns else "answers without knowledge")
            continue
        prompt = dialogue.render(turns, known, style)
        completion = dialogue.answer(answer, style)
        sample = Sample(f"{name}.{k}", group_of(prompt), prompt, completion, math.nan, meta={"knowledge": known})
        yield Entry([sample], source.fixed, turns[0][1], (kind, BOTH))


def _wizard(row: Row) -> Iterator[tuple[Turns, str, str]]:
    """Yield (turns so far, knowledge or "", answer) for each of the wizard's turns."""
    turns: Turns = []
    for turn in map(_object, items(row, "dialog")):
        utterance = text(turn, "text").strip()
        wizard = "wizard" in text(turn, "speaker").lower()
        if wizard:
            sentences = [sentence for sentence in mapping(turn, "checked_sentence").values() if sentence != UNUSED]
            yield list(turns), text({"knowledge": sentences[0]}, "knowledge").strip() if sentences else "", utterance
        turns.append((ASSISTANT if wizard else HUMAN, utterance))


def _faithful(turn: Row) -> tuple[Turns, str, str]:
    """Return (turns so far, knowledge or "", answer) of a FaithDial turn, whose speakers alternate."""
    history = [text({"history": utterance}, "history").strip() for utterance in items(turn, "history")]
    turns = [((ASSISTANT, HUMAN)[(len(history) - i) % 2], utterance) for i, utterance in enumerate(history)]
    return turns, str(turn.get("knowledge") or "").strip(), text(turn, "response").strip()


def _object(value: Any) -> Row:
    if not isinstance(value, dict):
        raise BadRowError("a turn must be an object", f"not {value!r:.60}")
    return value


FAMILY = Family("knowledge", (".json", ".jsonl"), dialogue.STYLES, lambda source: bool(source.split), records, read)
