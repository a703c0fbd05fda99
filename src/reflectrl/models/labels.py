"""Choice labels: the short words of which one answers "which action?", each a single token of the tokenizer."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from reflectrl.types import UserError

STEM = "Choice:"
"""The words that end the policy's prompt; a label's token is judged in this context."""


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


def candidates() -> Iterator[str]:
    """The labels tried, best first: numbers from 1 to 199, letters, then two-letter words."""
    yield from (str(i) for i in range(1, 200))
    yield from string.ascii_lowercase
    yield from string.ascii_uppercase
    yield from (a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)


def find_labels(tokenizer: Any, count: int) -> Labels:
    """The first `count` candidates that are single, distinct tokens of the tokenizer after the policy's prompt.

    The labels for few actions are the first of those for many, so prompts of either kind can share a batch.

    Raises:
        UserError: the tokenizer has fewer such labels.
    """
    gap = _gap(tokenizer)
    found = list(islice(_single_tokens(tokenizer, gap), count))
    if len(found) < count:
        raise UserError(
            f"the tokenizer has {len(found)} single-token choice labels, but {count} actions are to be listed;"
            " use another model, or an environment that lists fewer actions"
        )
    return Labels(tuple(text for text, _ in found), tuple(token for _, token in found), gap)


def _gap(tokenizer: Any, enough: int = 9) -> str:
    """The gap under which there are more labels; where there are enough under both, none."""
    merged, apart = (sum(1 for _ in islice(_single_tokens(tokenizer, gap), enough)) for gap in ("", " "))
    return "" if merged >= apart else " "


def _single_tokens(tokenizer: Any, gap: str) -> Iterator[tuple[str, int]]:
    """(label, token id) of the candidates that add exactly one token to `STEM + gap`."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    stem = encode(STEM + gap)
    taken: set[int] = set()
    for label in candidates():
        ids = encode(f"{STEM} {label}")
        if len(ids) == len(stem) + 1 and ids[: len(stem)] == stem and ids[-1] not in taken:
            taken.add(ids[-1])
            yield label, ids[-1]
