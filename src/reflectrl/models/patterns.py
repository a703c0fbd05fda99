"""Checks of the patterns in a tokenizer's file: exponential matching time, and growth of the text by replacements.

The tokenizers library matches by backtracking (Oniguruma). If a part that can match in several ways is itself repeated,
the time grows exponentially with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MANY = 10
"""Number of allowed repetitions from which a part counts as repeated without bound."""
SPLIT = 4
"""Largest number of unbounded repetitions in one alternative. Each may multiply the time by the text's length."""
QUANTIFIER = re.compile(r"([*+?]|\{\d*(?:,\d*)?\})([+?]?)")


@dataclass
class Part:
    """A group of a pattern, or all of it.

    Attributes:
        varies: True if it can match in more than one way.
        repeated: number of unbounded repetitions in its current alternative.
        atomic: True for an atomic group, which never backtracks into its match.
    """

    varies: bool = False
    repeated: int = 0
    atomic: bool = False


def is_runaway(pattern: str) -> bool:
    """Tell whether matching a pattern may take exponential time: a group that varies is itself repeated.

    Errs on the side of refusing. Patterns of the usual tokenizers repeat single characters and classes only.
    """
    open_parts, position = [Part()], 0
    closed: Part | None = None  # the group that ends here
    while position < len(pattern):
        letter = pattern[position]
        if (match := QUANTIFIER.match(pattern, position)) and position > 0:
            if _repeats(open_parts[-1], closed, *match.groups()):
                return True
            position = match.end()
            if QUANTIFIER.match(pattern, position):
                return True  # a quantifier of a quantifier
            closed = None
            continue
        closed = None
        if pattern.startswith("\\g", position):
            return True  # calls a group again
        if letter == "\\":
            position += 1
        elif letter == "[":
            position = _end_of_class(pattern, position)
        elif letter == "(":
            open_parts.append(Part(atomic=pattern.startswith("(?>", position)))
            position += 1 if pattern.startswith("(?", position) else 0
        elif letter == ")" and len(open_parts) > 1:
            closed = open_parts.pop()
            open_parts[-1].varies |= closed.varies
            open_parts[-1].repeated += closed.repeated
        elif letter == "|":
            open_parts[-1].varies = True
            open_parts[-1].repeated = 0
        if open_parts[-1].repeated > SPLIT:
            return True
        position += 1
    return open_parts[-1].repeated > SPLIT


def _repeats(around: Part, closed: Part | None, quantifier: str, mode: str) -> bool:
    """Note a quantifier in the group around it; tell whether it repeats a group that varies."""
    numbers = [int(digits) for digits in re.findall(r"\d+", quantifier)]
    ends = quantifier == "?" or (bool(numbers) and not quantifier.endswith(",}"))
    many = not ends or max(numbers, default=1) >= MANY
    possessive = mode == "+" and quantifier in ("*", "+", "?")
    if many and closed is not None and closed.varies and not possessive and not closed.atomic:
        return True
    exact = quantifier.startswith("{") and "," not in quantifier
    around.varies |= not exact
    around.repeated += many and not exact and not possessive
    return False


def _end_of_class(pattern: str, index: int) -> int:
    """Find the bracket that closes a character class. Classes may be nested."""
    depth = 0
    while index < len(pattern):
        if pattern[index] == "\\":
            index += 1
        elif pattern[index] == "[":
            depth += 1
            opened = re.compile(r"\[\^?\]").match(pattern, index)  # a bracket that stands for itself comes first
            index = opened.end() - 1 if opened else index
        elif pattern[index] == "]":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return index


def growth(tokenizer: Any) -> Iterator[float]:
    """Yield, for each replacement in a tokenizer's file, the factor by which it can lengthen a text (at least 1)."""
    if isinstance(tokenizer, Mapping):
        content, pattern = tokenizer.get("content"), tokenizer.get("pattern")
        if tokenizer.get("type") == "Replace" and isinstance(content, str) and isinstance(pattern, Mapping):
            text = pattern.get("String")
            yield max(1.0, len(content) / max(1, len(text) if isinstance(text, str) else 1))
        for item in tokenizer.values():
            yield from growth(item)
    elif isinstance(tokenizer, list):
        for item in tokenizer:
            yield from growth(item)
