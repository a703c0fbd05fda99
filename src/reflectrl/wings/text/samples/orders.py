"""A small text task with a programmatic reward: a waiter answers orders, in logged answers of mixed quality.

A good answer names exactly the ordered dishes, begins politely, and does not repeat itself. The logged waiter does each
of these only some of the time, and is less polite to impolite guests. So the expected reward depends on the prompt.
Everything is drawn from the seed. Each set of dishes belongs to one split, so no order of the test set occurs in
training in any wording.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from reflectrl.core.types import named_seed
from reflectrl.wings.text.samples.dialogue import HUMAN, render
from reflectrl.wings.text.samples.sample import Sample, group_of

DISHES = (
    "tea", "coffee", "cocoa", "milk", "water", "juice", "soup", "salad", "bread", "toast", "rice", "pasta",
    "fish", "ham", "cheese", "eggs", "beans", "peas", "corn", "cake", "pie", "honey", "jam", "plums",
)  # fmt: skip
FRIENDLY = ("Could I have {}, please?", "Good evening! I would like {}.", "{}, if you would be so kind.")
BLUNT = ("Bring me {}.", "{}. And be quick.", "I want {}, now.")
POLITE = ("Of course!", "Certainly!", "With pleasure!", "Gladly!", "Thank you!", "At once!")
CURT = ("Fine.", "Yes.", "Hm.", "Right.", "Again?", "Wait.")
ENDINGS = ("coming up", "on the way", "in a minute", "for your table", "just for you")

SPLITS = {"train": 0.7, "validation": 0.15, "test": 0.15}


class Waiter(NamedTuple):
    """Probabilities of the logged waiter's behaviour.

    Attributes:
        polite: probabilities of a polite answer to friendly and to blunt guests.
        exact: probability that all ordered dishes are named; otherwise a dish is forgotten or swapped.
        repeats: probability that the ending is repeated.
    """

    polite: tuple[float, float] = (0.5, 0.2)
    exact: float = 0.4
    repeats: float = 0.5


WAITER = Waiter()


def orders(count: int, answers: int, split: str, seed: int, waiter: Waiter = WAITER) -> Iterator[Sample]:
    """Yield samples of `count` prompts with `answers` logged answers each. Their reward is NaN until they are scored.

    Args:
        split: "train", "validation" or "test".
    """
    assert split in SPLITS
    rng = np.random.default_rng(named_seed(seed, "orders", split))
    seen: set[str] = set()
    while len(seen) < count:
        dishes = [str(dish) for dish in rng.choice(DISHES, int(rng.integers(2, 5)), replace=False)]
        friendly = bool(rng.random() < 0.5)
        wording, request = str(rng.choice(FRIENDLY if friendly else BLUNT)), listed(dishes)
        prompt = render([(HUMAN, wording.format(request.capitalize() if wording.startswith("{") else request))])
        if split_of(dishes) != split or prompt in seen:
            continue
        seen.add(prompt)
        for k in range(answers):
            text = _answer(dishes, friendly, waiter, rng)
            name = f"{split}:{len(seen) - 1}.{k}"
            yield Sample(name, group_of(prompt), prompt, f" {text}", math.nan, meta={"ordered": dishes})


def split_of(dishes: list[str]) -> str:
    """Return the split of a set of dishes. It does not depend on their order or on the wording of the prompt."""
    fraction = named_seed("orders", *sorted(dishes)) / 2**63
    for split, share in SPLITS.items():
        if fraction < share:
            return split
        fraction -= share
    return split


def _answer(dishes: list[str], friendly: bool, waiter: Waiter, rng: np.random.Generator) -> str:
    polite = rng.random() < waiter.polite[0 if friendly else 1]
    named = list(dishes)
    if rng.random() >= waiter.exact:
        index = int(rng.integers(len(named)))
        swapped = rng.random() < 0.5
        named[index : index + 1] = [str(rng.choice([d for d in DISHES if d not in dishes]))] if swapped else []
    ending = str(rng.choice(ENDINGS))
    ending_count = 1 + int(rng.integers(1, 3)) * int(rng.random() < waiter.repeats)
    return (
        f"{rng.choice(POLITE if polite else CURT)} {listed(named).capitalize()}, {', '.join([ending] * ending_count)}."
    )


def listed(dishes: list[str]) -> str:
    """Join dishes into a phrase: "tea, soup and bread"."""
    return " and ".join(filter(None, [", ".join(dishes[:-1]), dishes[-1]]))


# ---- rewards of an answer --------------------------------------------------------------------------------------------


def relevance(ordered: list[str], answer: str) -> float:
    """Return the F1 score of the named dishes against the ordered dishes, each counted once."""
    words = "".join(letter if letter.isalpha() else " " for letter in answer.lower()).split()
    named, wanted = {dish for dish in DISHES if dish in words}, set(ordered)
    return 2 * len(named & wanted) / (len(named) + len(wanted))


def politeness(answer: str) -> float:
    """Return 1 if the answer begins with a polite phrase, else 0."""
    return float(answer.strip().startswith(POLITE))


def economy(answer: str) -> float:
    """Return the share of distinct pairs among all pairs of neighbouring words; 0 for fewer than two words."""
    words = "".join(letter if letter.isalpha() else " " for letter in answer.lower()).split()
    pairs = list(pairwise(words))
    return len(set(pairs)) / len(pairs) if pairs else 0.0
