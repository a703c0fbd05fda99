"""Rules for settings, beyond their types: ranges, lists without repetition, names that fit a folder, what needs trust.

A rule is part of the field's type, as in `lr: Annotated[float, Range(above=0)]`, so the dataclass is its own
specification. `config.values` enforces the rules, and the reference of recipe keys prints them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal


@dataclass(frozen=True)
class Range:
    """A finite number between bounds: `least` and `most` belong to the range, `above` and `below` do not."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: Any) -> bool:
        """Tell whether the number lies in the range. Infinities and NaN never do."""
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if math.isfinite(bound))


@dataclass(frozen=True)
class Listed:
    """A list with at least one item and, if `distinct`, none of them twice."""

    distinct: bool = True

    def holds(self, value: Any) -> bool:
        """Tell whether the list has an item, and no item twice if `distinct`."""
        return bool(value) and (not self.distinct or len(set(value)) == len(value))

    def __str__(self) -> str:
        return "a list of at least one item" + (", none of them twice" if self.distinct else "")


@dataclass(frozen=True)
class Matching:
    """Text that matches a pattern; `meaning` describes the pattern in words."""

    pattern: str
    meaning: str

    def holds(self, value: Any) -> bool:
        """Tell whether the whole text matches the pattern."""
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.meaning


@dataclass(frozen=True)
class NeedsTrust:
    """Mark of a key that a file alone cannot set. `config.trust` reads the marks, and refuses such values in a file.

    Attributes:
        kind: the effect of a value: run code that it names, contact an address, send the content of an environment
            variable, or use an account of the user's.
        harmless: values without this effect.
    """

    kind: Literal["code", "address", "secret", "account"]
    harmless: tuple[str, ...] = ()

    def holds(self, value: Any) -> bool:
        """Allow every value: whether it is trusted depends on where it was written."""
        return True

    def __str__(self) -> str:
        return "may need trust"


Rule = Range | Listed | Matching | NeedsTrust

Count = Annotated[int, Range(least=1)]
"""A whole number above 0."""
Natural = Annotated[int, Range(least=0)]
"""A whole number, 0 or above."""
Share = Annotated[float, Range(least=0, most=1)]
"""A share or a probability."""
Positive = Annotated[float, Range(above=0)]
"""A number above 0."""
NonNegative = Annotated[float, Range(least=0)]
"""A number, 0 or above."""
FolderName = Annotated[str, Matching(r"[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*", "a name that can be a folder's")]
"""Text that is one folder's name."""
Device = Annotated[str, Matching(r"auto|cpu|mps|(cuda|xpu)(:\d+)?", "auto, cpu, mps, cuda or cuda:N")]
"""A torch device, or "auto"."""
Address = Annotated[str, NeedsTrust("address")]
"""Address of a server to which something is sent."""
Variable = Annotated[str, NeedsTrust("secret")]
"""Name of an environment variable whose content is sent to a server."""
