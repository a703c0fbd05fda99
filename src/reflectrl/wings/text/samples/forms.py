"""Readers of the supported forms of rows, which turn a row into samples. A form is recognised by its columns.

Readers take the row, the prefix of its samples' ids, and the reward of rows that have none (None refuses them).
"""

from __future__ import annotations

from typing import Any

from reflectrl.wings.text.samples import dialogue
from reflectrl.wings.text.samples.rows import (
    BadRowError,
    Row,
    checked,
    clean,
    finite,
    items,
    mapping,
    need,
    number,
    text,
)
from reflectrl.wings.text.samples.sample import Sample, group_of


def plain(row: Row, name: str, missing: float | None) -> list[Sample]:
    """Read our own rows, and rows with a prompt, a completion, and optionally a reward or a label (true, false)."""
    prompt, completion = _pair(need(row, "prompt"), need(row, "completion"), "completion")
    return [
        Sample(
            id=_word(row, "id", name),
            group=_word(row, "group", group_of(prompt)),
            prompt=prompt,
            completion=completion,
            reward=_reward(row, missing),
            components={key: finite(value, f"component {key}") for key, value in mapping(row, "components").items()},
            logprob=None if row.get("logprob") is None else number(row, "logprob"),
            meta=clean(mapping(row, "meta")),
        )
    ]


def _reward(row: Row, missing: float | None) -> float:
    if row.get("reward") is None and "label" in row:
        label = need(row, "label")
        if label not in (0, 1):  # False and True are
            raise BadRowError("label must be true or false", f"not {label!r:.60}")
        return float(label)
    if row.get("reward") is None and missing is not None:
        return missing
    return number(row, "reward")


def preference(row: Row, name: str) -> list[Sample]:
    """Read a chosen and a rejected completion, with rewards `score_chosen` and `score_rejected`, or 1 and 0.

    The columns decide the preference, as in TRL. If the scores disagree (`preference_oddity`), they are swapped, which
    keeps the reward scale that other pairs of the same prompt use. Each completion's own score is then kept in its
    components.

    If there is no prompt, or if conversations repeat it, the messages that both share at the start are the prompt.
    """
    repeated = isinstance(row["chosen"], list) and len(row["chosen"]) > 1
    if "prompt" not in row or repeated:
        chosen, rejected = row["chosen"], row["rejected"]
        if not (isinstance(chosen, list) and isinstance(rejected, list)):
            raise BadRowError("missing prompt", "whole dialogues in text are read by `reflectrl data hha`")
        prefix_length = 0
        while prefix_length < min(len(chosen), len(rejected)) - 1 and chosen[prefix_length] == rejected[prefix_length]:
            prefix_length += 1
        row = {
            **row,
            "prompt": chosen[:prefix_length],
            "chosen": chosen[prefix_length:],
            "rejected": rejected[prefix_length:],
        }
    scores = _scores(row)
    disagree = scores["chosen"] < scores["rejected"]
    samples = []
    for key, other in (("chosen", "rejected"), ("rejected", "chosen")):
        prompt, completion = _pair(need(row, "prompt"), need(row, key), key)
        reward = scores[other] if disagree else scores[key]
        components = {"score": scores[key]} if disagree else {}
        sample_id = f"{_word(row, 'id', name)}.{key}"
        samples.append(Sample(sample_id, group_of(prompt), prompt, completion, reward, components))
    return samples


def preference_oddity(row: Row) -> str:
    """Return a note if the scores of a pair disagree with its columns, else ""."""
    scores = _scores(row)
    disagree = scores["chosen"] < scores["rejected"]
    return "score_chosen is below score_rejected; the columns count, so the scores are swapped" if disagree else ""


def _scores(row: Row) -> dict[str, float]:
    """Return the scores of the two completions; 1 and 0 if the row has none."""
    if "score_chosen" not in row and "score_rejected" not in row:
        return {"chosen": 1.0, "rejected": 0.0}
    return {key: number(row, f"score_{key}") for key in ("chosen", "rejected")}


def _pair(prompt: Any, completion: Any, name: str) -> tuple[str, str]:
    """Return prompt and completion as text. Each is given as text or as a list of messages."""
    prompt = dialogue.render(dialogue.messages(prompt)) if isinstance(prompt, list) and prompt else prompt
    if isinstance(completion, list) and completion:
        turns = dialogue.messages(completion)
        if len(turns) != 1 or turns[0][0] != dialogue.ASSISTANT:
            raise BadRowError(f"{name} must be one message of the assistant")
        completion = f" {turns[0][1]}"
    for key, value in (("prompt", prompt), (name, completion)):
        if not isinstance(value, str):
            raise BadRowError(f"{key} must be text or messages", f"not {value!r:.60}")
    return checked(prompt, "prompt"), checked(completion, name)


def ranked(row: Row, name: str, missing: float | None, style: str = "labelled") -> list[Sample]:
    """Read an HHA row, with the dialogue so far ("prefix"), text ("suffix") and reward of each response.

    Responses may be in any order. A response to a different dialogue than the first gets a group of its own.
    "sft_index", the index of the response worth imitating, is kept in `meta`.
    """
    prefixes, suffixes = items(row, "prefix"), items(row, "suffix")
    rewards = items(row, "reward") if missing is None or row.get("reward") is not None else [missing] * len(suffixes)
    if not len(prefixes) == len(suffixes) == len(rewards) or not suffixes:
        raise BadRowError("lengths differ", f"{len(prefixes)} prefix, {len(suffixes)} suffix, {len(rewards)} reward")
    meta = clean({key: row[key] for key in ("sft_index", "meta") if row.get(key) not in (None, {})})
    first = _ranked_prompt(prefixes[0], style)
    samples = []
    for k, (prefix, suffix, reward) in enumerate(zip(prefixes, suffixes, rewards, strict=True)):
        prompt = first if prefix == prefixes[0] else _ranked_prompt(prefix, style)
        completion = dialogue.answer(text({"suffix": suffix}, "suffix").strip(), style)
        samples.append(Sample(f"{name}.{k}", group_of(prompt), prompt, completion, finite(reward, "reward"), meta=meta))
    return samples


def _ranked_prompt(prefix: Any, style: str) -> str:
    if not isinstance(prefix, list) or not prefix or not all(isinstance(turn, str) for turn in prefix):
        raise BadRowError("prefix must be a list of turns", f"not {prefix!r:.60}")
    turns = dialogue.marked(prefix)
    if not turns:
        raise BadRowError("empty prefix")
    return checked(dialogue.render(turns, style=style), "prefix")


def normalised(row: Row, name: str, missing: float | None) -> list[Sample]:
    """Read a row with reward components. Each reference is a completion, and all share the row's reward."""
    prompt, references = text(row, "prompt_or_input_text"), items(row, "references")
    components = mapping(row, "reward_components")
    if "final_reward" not in components and missing is not None:
        components = {**components, "final_reward": missing}
    reward = number(components, "final_reward", "reward")
    parts = {key: finite(value, f"component {key}") for key, value in components.items() if key != "final_reward"}
    if not references:
        raise BadRowError("empty references")
    first, meta = _word(row, "id", name), clean(mapping(row, "meta_data"))
    samples = []
    for k, reference in enumerate(references):
        completion = text({"reference": reference}, "reference")
        key = first if len(references) == 1 else f"{first}.{k}"
        samples.append(Sample(key, group_of(prompt), prompt, completion, reward, parts, meta=meta))
    return samples


def _word(row: Row, key: str, default: str) -> str:
    """Return an id, given as text or as an integer."""
    value = row.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRowError(f"{key} must be text", f"not {value!r:.60}")
    return checked(str(value), key)
