"""Train, validation and test: dividing tasks among them, and refusing names that an environment does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from reflectrl.plugins import suggestion
from reflectrl.types import UserError, named_seed

T = TypeVar("T")

SPLITS = ("train", "validation", "test")


def require_known(env: str, kind: str, word: str, known: Sequence[str]) -> None:
    """Refuse a word that is not known: `require_known("taxi", "split", split, SPLITS)`.

    Raises:
        UserError: names the environment, the word and the nearest known one.
    """
    if word not in known:
        raise UserError(f"{env}: unknown {kind} {word!r}{suggestion(str(word), known)}")


def divide(items: Sequence[T], sizes: Mapping[str, int], *seed_names: object) -> dict[str, list[T]]:
    """Shuffle `items` by a named seed and deal them out to the splits in the order of `sizes`.

    Every item goes to at most one split; those left over go to none.

    Raises:
        UserError: a size is below 1, or the sizes ask for more items than there are.
    """
    if min(sizes.values()) < 1 or sum(sizes.values()) > len(items):
        raise UserError(f"split sizes {dict(sizes)} must each be at least 1 and together at most {len(items)}")
    order = np.random.default_rng(named_seed("divide", *seed_names)).permutation(len(items))
    ends = np.cumsum(list(sizes.values()))
    return {split: [items[i] for i in part] for split, part in zip(sizes, np.split(order, ends), strict=False)}
