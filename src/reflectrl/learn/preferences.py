"""Preferences among the completions of one prompt, from their rewards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from reflectrl.learn.completions import Dataset


class Item(NamedTuple):
    """What has one loss: a completion, a pair (the better first), or a ranking (the best first).

    Attributes:
        rows: numbers of the completions in their data set.
        rewards: of each.
    """

    rows: tuple[int, ...]
    rewards: tuple[float, ...]


def singles(data: Dataset) -> list[Item]:
    """Every completion for itself."""
    return [Item((row,), (reward,)) for row, reward in enumerate(data.rewards_N.tolist())]


def rankings(data: Dataset) -> list[Item]:
    """The different completions of each prompt, the best first; prompts where all earned the same are left out.

    The same completion may have been logged several times, for other amounts: its reward is their mean.
    """
    found: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, group in enumerate(data.groups):
        found[group][tuple(data.completions.answers[row])].append(row)
    ranked = []
    for answers in found.values():
        means = [(float(data.rewards_N[rows].mean()), rows[0]) for rows in answers.values()]
        means.sort(key=lambda one: -one[0])
        if means[0][0] > means[-1][0]:
            ranked.append(Item(tuple(row for _, row in means), tuple(mean for mean, _ in means)))
    return ranked


def pairs(ranked: Iterable[Item]) -> list[Item]:
    """The best completion of each ranking against every one that earned less."""
    return [
        Item((item.rows[0], row), (item.rewards[0], reward))
        for item in ranked
        for row, reward in zip(item.rows[1:], item.rewards[1:], strict=True)
        if reward < item.rewards[0]
    ]
