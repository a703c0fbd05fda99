"""Commonsense inferences: the prompt is an event and a relation, the completion an inference.

Two forms are read. ATOMIC 2020 (Hwang et al. 2021, arXiv 2010.05953) has lines of head, relation and tail, separated by
tabs, with an optional critic's score at the end. ATOMIC-10x (West et al. 2022, arXiv 2110.07178) has JSON lines with
"head", "relation", "tail", "split" and the critic's "p_valid_model", in a file with atomic10x in its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from reflectrl.core.plugins import suggestion
from reflectrl.wings.text.samples.families.sources import Source, records, split_of
from reflectrl.wings.text.samples.families.store import Entry, Family
from reflectrl.wings.text.samples.rows import BadRowError, LeftOutError, checked, finite, number, parsed, text, to_float
from reflectrl.wings.text.samples.sample import Sample, group_of

RELATIONS = {
    "xNeed": "{}. For this to happen, PersonX first needed",
    "xIntent": "{}. PersonX did it because PersonX wanted",
    "xAttr": "{}. People would call PersonX",
    "xReact": "{}. It makes PersonX feel",
    "xEffect": "{}. What happens to PersonX is that PersonX",
    "xWant": "{}. Next, PersonX would like",
    "xReason": "{}. The reason for it is",
    "oNeed": "{}. For this to happen, the others first needed",
    "oReact": "{}. It makes the others feel",
    "oEffect": "{}. What happens to the others is that they",
    "oWant": "{}. Next, the others would like",
    "isBefore": "{}. What happens afterwards:",
    "isAfter": "{}. What happened earlier:",
    "HinderedBy": "{}. It can be prevented by this:",
    "Causes": "{}. It leads to this:",
    "HasSubEvent": "{}. A part of it is this:",
    "isFilledBy": "{}. The gap in this sentence can be filled with",
    "ObjectUse": "Somebody may use {} for this purpose:",
    "AtLocation": "A place where {} can be found is",
    "MadeUpOf": "One thing that {} consists of is",
    "HasProperty": "A word that describes {} is",
    "CapableOf": "One thing that {} can do is",
    "Desires": "One thing that {} wants is",
    "NotDesires": "One thing that {} does not want is",
}
"""Relations of ATOMIC 2020 and ATOMIC-10x, each as the beginning of a sentence that the inference completes."""

STYLES = {
    "words": None,
    "distill": "<head> {head} </head> <relation> {relation} </relation> [GEN]",
    "atomic2020": "{head} {relation} [GEN]",
}
"""Formats of prompts: words, or the formats of the COMET-distill and COMET-ATOMIC 2020 models."""

DISTILLED = ("HinderedBy", "xAttr", "xEffect", "xIntent", "xNeed", "xReact", "xWant")
"""Relations of ATOMIC-10x. COMET-distill and its critic know no others."""

SCORE = "valid"
"""Name of the critic's score among a sample's components."""


def prompt_of(head: str, relation: str, style: str = "words") -> str:
    """Return the prompt for an event and a relation; BadRowError if the relation is unknown."""
    if relation not in RELATIONS:
        raise BadRowError("unknown relation", f"{relation!r:.40}{suggestion(relation, RELATIONS)}")
    template = STYLES[style]
    return template.format(head=head, relation=relation) if template else RELATIONS[relation].format(head.rstrip(". "))


def read(record: Any, name: str, source: Source, style: str) -> Iterator[Entry]:
    """Read an inference. All inferences from an event stay in one split."""
    if source.ends(".tsv"):
        fields = _fields(record)
        if [field.split("_")[0].lower() for field in fields[:3]] == ["head", "relation", "tail"]:
            return  # a header
        row = dict(zip(("head", "relation", "tail", "score"), fields, strict=False))
        score = finite(to_float(row["score"], "score"), "score") if "score" in row else math.nan
        split = source.fixed
    else:
        row = parsed(record)
        score = number(row, "p_valid_model")
        split = split_of(text(row, "split").lower())
        if not split:
            raise BadRowError("unknown split", f"{row['split']!r:.40} (known: train, val, test)")
    head, relation, tail = (text(row, key).strip() for key in ("head", "relation", "tail"))
    prompt = prompt_of(head, relation, style)
    if style == "distill" and relation not in DISTILLED:
        raise LeftOutError("relations that COMET-distill does not know")
    components = {} if math.isnan(score) else {SCORE: score}
    meta = {"head": head, "relation": relation}
    yield Entry([Sample(name, group_of(prompt), prompt, f" {tail}", score, components, meta=meta)], split, head)


def _fields(line: bytes) -> list[str]:
    try:
        fields = line.decode("utf-8").rstrip("\r\n").split("\t")
    except UnicodeDecodeError as error:
        raise BadRowError("not UTF-8", str(error)) from error
    if len(fields) not in (3, 4):
        raise BadRowError("not 3 or 4 fields between tabs", f"{len(fields)} in {line[:60]!r}")
    return [checked(field, key) for field, key in zip(fields, ("head", "relation", "tail", "score"), strict=False)]


FAMILY = Family(
    "comet",
    (".tsv", ".jsonl"),
    tuple(STYLES),
    lambda source: bool(source.split) or "atomic10x" in source.path.name.lower(),
    records,
    read,
)
