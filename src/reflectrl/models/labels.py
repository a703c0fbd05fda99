"""Choice labels: the short words of which one answers "which action?", each a single token of the tokenizer."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
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
    """"1".."199", letters, then two-letter words: the labels tried, best first."""
    yield from (str(i) for i in range(1, 200))
    yield from string.ascii_lowercase
    yield from string.ascii_uppercase
    yield from (a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)


def find_labels(tokenizer: Any, count: int) -> Labels:
    """The first `count` candidates that are single, distinct tokens of the tokenizer after the policy's prompt.

    Raises:
        UserError: the tokenizer has fewer such labels.
    """
    best = max((_single_tokens(tokenizer, gap, count) for gap in ("", " ")), key=len)
    if len(best) < count:
        raise UserError(
            f"the tokenizer has {len(best)} single-token choice labels, but {count} actions are to be listed;"
            " use another model, or an environment that lists fewer actions"
        )
    gap = best[0][2]
    return Labels(tuple(text for text, _, _ in best), tuple(token for _, token, _ in best), gap)


def _single_tokens(tokenizer: Any, gap: str, count: int) -> list[tuple[str, int, str]]:
    """(label, token id, gap) of the candidates that add exactly one token to `STEM + gap`."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    stem = encode(STEM + gap)
    found: list[tuple[str, int, str]] = []
    taken: set[int] = set()
    for label in candidates():
        if len(found) == count:
            break
        ids = encode(f"{STEM} {label}")
        if len(ids) == len(stem) + 1 and ids[: len(stem)] == stem and ids[-1] not in taken:
            found.append((label, ids[-1], gap))
            taken.add(ids[-1])
    return found
