"""Choice labels: short words, each a single token, with which the policy names the action it chooses."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from reflectrl.types import UserError

STEM = "Choice:"
"""The last word of the policy's prompt. Whether a label is a single token is judged in this context."""

ENOUGH = 9
"""If at least this many labels include their leading space, labels after a separate space are not tried."""


MOST = 199 + 2 * 26 + 26**2
"""How many labels there are to try; no tokenizer has more."""


@dataclass(frozen=True)
class Labels:
    """Labels of a tokenizer.

    Attributes:
        texts: the labels as they are written in the prompt, in order.
        token_ids: the one token of each label when it follows the prompt.
        gap: what is put between the prompt's last word and the label's token: " " for tokenizers that make the space a
            token of its own, "" for those that merge it into the label.
    """

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]
    gap: str


_of: WeakKeyDictionary[Any, dict[str, Labels]] = WeakKeyDictionary()
"""The labels found so far, by tokenizer and by the text before a label."""


def candidates() -> Iterator[str]:
    """The labels to try, best first: numbers from 1 to 199, letters, then two-letter words."""
    yield from (str(i) for i in range(1, 200))
    yield from string.ascii_lowercase
    yield from string.ascii_uppercase
    yield from (a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)


def require_labels(actions: int) -> None:
    """Refuse more legal actions than labels can tell apart, before anything is played or made for them.

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
    """The labels of a tokenizer, best first: the candidates that are single, distinct tokens after the policy's prompt.

    The gap is chosen so that there are more labels; if both choices give enough, there is no gap.

    Args:
        count: the number of labels; None for all. The labels for few actions are the first of those for many, so that
            both kinds of prompts can share a batch.
        opening: the text directly before a label, if it is not the prompt's last word: a chat's `after`.

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
    """Label → token, for the candidates that add exactly one token to `STEM + gap`, or to the opening."""
    stem = list(tokenizer.encode(opening or STEM + gap, add_special_tokens=False))
    found: dict[int, str] = {}
    for label in candidates():
        ids = list(tokenizer.encode(f"{opening or f'{STEM} '}{label}", add_special_tokens=False))
        if len(ids) == len(stem) + 1 and ids[: len(stem)] == stem:
            found.setdefault(ids[-1], label)
    return {label: token for token, label in found.items()}
