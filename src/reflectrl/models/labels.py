"""Choice labels: the short words of which one answers "which action?", each a single token of the tokenizer."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from reflectrl.types import UserError

STEM = "Choice:"
"""The words that end the policy's prompt; a label's token is judged in this context."""

ENOUGH = 9
"""With so many labels that carry their space with them, labels behind a space of its own are not looked for."""


@dataclass(frozen=True)
class Labels:
    """Labels of a tokenizer.

    Attributes:
        texts: the labels as they stand in the prompt, in order.
        token_ids: the one token that each of them is when it follows the prompt.
        gap: what stands between the prompt's last word and the label's token (" " for tokenizers that keep the space
            a token of its own, "" for those that merge it into the label).
    """

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    gap: str


_of: WeakKeyDictionary[Any, dict[str, Labels]] = WeakKeyDictionary()
"""Found once for each tokenizer, and for what stands before a label."""


def candidates() -> Iterator[str]:
    """The labels tried, best first: numbers from 1 to 199, letters, then two-letter words."""
    yield from (str(i) for i in range(1, 200))
    yield from string.ascii_lowercase
    yield from string.ascii_uppercase
    yield from (a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)


def find_labels(tokenizer: Any, count: int | None = None, opening: str = "") -> Labels:
    """The labels of a tokenizer, best first: the candidates that are single, distinct tokens after the policy's prompt.

    The gap is the one under which there are more labels; where there are enough under both, none.

    Args:
        count: how many are asked for; None for all. Those for few actions are the first of those for many, so prompts
            of either kind can share a batch.
        opening: what stands directly before a label in the place of the prompt's last word: a chat's `after`.

    Raises:
        UserError: the tokenizer has fewer.
    """
    known = _of.setdefault(tokenizer, {})
    if opening not in known:
        merged, apart = _single_tokens(tokenizer, opening, ""), dict[str, int]()
        if len(merged) < ENOUGH and not opening:
            apart = _single_tokens(tokenizer, opening, " ")
        gap, found = ("", merged) if len(merged) >= min(len(apart), ENOUGH) else (" ", apart)
        known[opening] = Labels(tuple(found), tuple(found.values()), gap)
    every = known[opening]
    if count is not None and len(every.texts) < count:
        raise UserError(
            f"the tokenizer has {len(every.texts)} single-token choice labels, but {count} actions are to be listed;"
            " use another model, or an environment that lists fewer actions"
        )
    return Labels(every.texts[:count], every.token_ids[:count], every.gap)


def _single_tokens(tokenizer: Any, opening: str, gap: str) -> dict[str, int]:
    """Label → token of the candidates that add exactly one token to `STEM + gap`, or to an opening."""
    stem = list(tokenizer.encode(opening or STEM + gap, add_special_tokens=False))
    found: dict[int, str] = {}
    for label in candidates():
        ids = list(tokenizer.encode(f"{opening or f'{STEM} '}{label}", add_special_tokens=False))
        if len(ids) == len(stem) + 1 and ids[: len(stem)] == stem:
            found.setdefault(ids[-1], label)
    return {label: token for token, label in found.items()}
