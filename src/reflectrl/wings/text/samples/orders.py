"""A small text task whose reward a program knows: a waiter answers orders, in logged answers of mixed quality.

A good answer names what was ordered and nothing else, begins politely, and does not repeat itself. The logged waiter
does each of these only some of the time, and is less polite to guests who are not: what is to be expected depends on
the prompt. Everything is drawn from the seed; sets of dishes are dealt to one split each, so no order of the test set,
in whatever wording, occurs in training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from reflectrl.types import named_seed
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
    """How often the logged waiter does what.

    Attributes:
        polite: to friendly guests, and to blunt ones.
        exact: names all that was ordered; otherwise a dish is forgotten or swapped.
        repeats: says an ending again.
    """

    polite: tuple[float, float] = (0.5, 0.2)
    exact: float = 0.4
    repeats: float = 0.5


WAITER = Waiter()


def orders(count: int, answers: int, split: str, seed: int, waiter: Waiter = WAITER) -> Iterator[Sample]:
    """Samples of `count` prompts with `answers` logged answers each; their reward is NaN until something labels them.

    Args:
        split: "train", "validation" or "test".
    """
    assert split in SPLITS
    rng = np.random.default_rng(named_seed(seed, "orders", split))
    seen: set[str] = set()
    while len(seen) < count:
        dishes = [str(dish) for dish in rng.choice(DISHES, int(rng.integers(2, 5)), replace=False)]
        friendly = bool(rng.random() < 0.5)
        wording, asked = str(rng.choice(FRIENDLY if friendly else BLUNT)), listed(dishes)
        prompt = render([(HUMAN, wording.format(asked.capitalize() if wording.startswith("{") else asked))])
        if split_of(dishes) != split or prompt in seen:
            continue
        seen.add(prompt)
        for k in range(answers):
            text = _answer(dishes, friendly, waiter, rng)
            name = f"{split}:{len(seen) - 1}.{k}"
            yield Sample(name, group_of(prompt), prompt, f" {text}", math.nan, meta={"ordered": dishes})


def split_of(dishes: list[str]) -> str:
    """The split to which a set of dishes belongs, in whatever order and wording they are asked for."""
    place = named_seed("orders", *sorted(dishes)) / 2**63
    for split, share in SPLITS.items():
        if place < share:
            return split
        place -= share
    return split


def _answer(dishes: list[str], friendly: bool, waiter: Waiter, rng: np.random.Generator) -> str:
    polite = rng.random() < waiter.polite[0 if friendly else 1]
    named = list(dishes)
    if rng.random() >= waiter.exact:
        place = int(rng.integers(len(named)))
        swapped = rng.random() < 0.5
        named[place : place + 1] = [str(rng.choice([d for d in DISHES if d not in dishes]))] if swapped else []
    ending = str(rng.choice(ENDINGS))
    again = 1 + int(rng.integers(1, 3)) * int(rng.random() < waiter.repeats)
    return f"{rng.choice(POLITE if polite else CURT)} {listed(named).capitalize()}, {', '.join([ending] * again)}."


def listed(dishes: list[str]) -> str:
    """Dishes as one says them: "tea, soup and bread"."""
    return " and ".join(filter(None, [", ".join(dishes[:-1]), dishes[-1]]))


# ---- what an answer is worth -----------------------------------------------------------------------------------------


def relevance(ordered: list[str], answer: str) -> float:
    """F1 of the dishes that are named against those that were ordered, each counted once."""
    said = "".join(letter if letter.isalpha() else " " for letter in answer.lower()).split()
    named, wanted = {dish for dish in DISHES if dish in said}, set(ordered)
    return 2 * len(named & wanted) / (len(named) + len(wanted))


def politeness(answer: str) -> float:
    """1 if the answer begins with a polite phrase, else 0."""
    return float(answer.strip().startswith(POLITE))


def economy(answer: str) -> float:
    """Share of the pairs of neighbouring words that are said for the first time; 0 for fewer than two words."""
    said = "".join(letter if letter.isalpha() else " " for letter in answer.lower()).split()
    pairs = list(pairwise(said))
    return len(set(pairs)) / len(pairs) if pairs else 0.0
