"""Choice labels: short words of a single token each, with which the policy names its action."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from reflectrl.core.types import UserError

STEM = "Choice:"
"""Last word of the policy's prompt. A label must be a single token in this context."""

ENOUGH = 9
"""Sufficient number of labels with a merged leading space. With fewer, labels after a separate space are tried."""


MOST = 199 + 2 * 26 + 26**2
"""Number of candidate labels. No tokenizer has more labels than this."""


@dataclass(frozen=True)
class Labels:
    """Labels of a tokenizer.

    Attributes:
        texts: the labels as they are written in the prompt, in order.
        token_ids: the one token of each label when it follows the prompt.
        gap: text between the prompt's last word and the label's token: " " if the tokenizer makes the space a token of
            its own, "" if it merges the space into the label.
    """

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    gap: str


_of: WeakKeyDictionary[Any, dict[str, Labels]] = WeakKeyDictionary()
"""The labels found so far, by tokenizer and by the text before a label."""


def candidates() -> Iterator[str]:
    """Yield the labels to try, best first: numbers from 1 to 199, letters, then two-letter words."""
    yield from (str(i) for i in range(1, 200))
    yield from string.ascii_lowercase
    yield from string.ascii_uppercase
    yield from (a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)


def require_labels(actions: int) -> None:
    """Refuse more legal actions than labels can tell apart, before anything is played or made.

    Raises:
        UserError: says how many there may be, and what to do.
    """
    if actions > MOST:
        raise UserError(
            f"{actions} actions are legal at once, and labels tell at most {MOST} apart: list fewer, have answers"
            " written piece by piece (WrittenEnv, docs/environments.md), or choose by the actions' own texts:"
            " --play.scoring trie"
        )


def find_labels(tokenizer: Any, count: int | None = None, opening: str = "") -> Labels:
    """Find a tokenizer's labels, best first: candidates that are single, distinct tokens after the policy's prompt.

    The gap is chosen so that there are more labels. If both choices give enough, there is no gap.

    Args:
        count: number of labels; None for all. Prompts with few actions use the first labels of prompts with many, so
            that both can share a batch.
        opening: text directly before a label, if it is not the prompt's last word (a chat's `after`).

    Raises:
        UserError: the tokenizer has fewer than `count` labels.
    """
    labels_by_opening = _of.setdefault(tokenizer, {})
    if opening not in labels_by_opening:
        merged, spaced = _single_tokens(tokenizer, opening, ""), dict[str, int]()
        if len(merged) < ENOUGH and not opening:
            spaced = _single_tokens(tokenizer, opening, " ")
        gap, tokens = ("", merged) if len(merged) >= min(len(spaced), ENOUGH) else (" ", spaced)
        labels_by_opening[opening] = Labels(tuple(tokens), tuple(tokens.values()), gap)
    labels = labels_by_opening[opening]
    if count is not None and len(labels.texts) < count:
        raise UserError(
            f"the tokenizer has {len(labels.texts)} single-token choice labels, but {count} actions are to be listed;"
            " use another model, or an environment that lists fewer actions"
        )
    return Labels(labels.texts[:count], labels.token_ids[:count], labels.gap)


def _single_tokens(tokenizer: Any, opening: str, gap: str) -> dict[str, int]:
    """Map each candidate that adds exactly one token to `STEM + gap`, or to the opening, to this token."""
    stem = list(tokenizer.encode(opening or STEM + gap, add_special_tokens=False))
    labels, before = list(candidates()), opening or f"{STEM} "
    texts = [before + label for label in labels]  # one call for all texts is much quicker than a call for each
    label_of: dict[int, str] = {}
    for label, ids in zip(labels, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        if len(ids) == len(stem) + 1 and ids[: len(stem)] == stem:
            label_of.setdefault(ids[-1], label)
    return {label: token for token, label in label_of.items()}
