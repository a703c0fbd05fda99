"""Words of the tasks: a measure's names among people and in tables, and the split of each combination."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from reflectrl.core.types import named_seed


class Measure(NamedTuple):
    """A quantity of a table.

    Attributes:
        nouns: words of a person who asks for it. None of them is the name of a column.
        columns: names that a table may give it.
    """

    nouns: tuple[str, ...]
    columns: tuple[str, ...]


MEASURES: Mapping[str, Measure] = {
    "salary": Measure(("salary", "income"), ("wage", "pay", "earnings")),
    "price": Measure(("price", "asking price"), ("charge", "fee", "rate")),
    "extent": Measure(("floor space", "extent"), ("area", "sqm", "surface")),
    "weight": Measure(("weight", "mass"), ("kg", "pounds", "grams")),
    "population": Measure(("population", "number of people"), ("inhabitants", "residents", "citizens")),
    "rain": Measure(("rain", "rainfall"), ("precipitation", "millimetres", "wetness")),
    "distance": Measure(("distance", "length of the way"), ("km", "miles", "metres")),
    "sales": Measure(("sales", "number of purchases"), ("sold", "units", "orders")),
    "temperature": Measure(("temperature", "heat"), ("celsius", "degrees", "warmth")),
    "rating": Measure(("rating", "quality"), ("stars", "score", "grade")),
    "speed": Measure(("speed", "pace"), ("kmh", "mph", "velocity")),
    "duration": Measure(("duration", "time needed"), ("minutes", "hours", "seconds")),
}
CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "region": ("north", "south", "east"),
    "season": ("spring", "summer", "winter"),
    "team": ("red", "green", "blue"),
    "size": ("small", "medium", "large"),
}
TABLES = ("survey", "places", "branches", "records", "sites", "visits")

PARAMETERS: Mapping[str, Measure] = {
    "demand": Measure(("demand", "the number of customers"), ("demand", "buyers")),
    "price": Measure(("the price", "what a ticket costs"), ("price", "ticket")),
    "wages": Measure(("the wage", "the pay"), ("wage", "labour")),
    "rent": Measure(("the rent", "the cost of the rooms"), ("rent", "lease")),
    "capacity": Measure(("the capacity", "the number of seats"), ("capacity", "limit")),
}
"""Inputs of a model. A person may call one by its key here."""
FIGURES: Mapping[str, tuple[str, ...]] = {
    "sales": ("sales", "number sold"),
    "revenue": ("revenue", "turnover"),
    "cost": ("cost", "expense"),
    "profit": ("profit", "surplus"),
}
"""Figures that a model computes → nouns."""
PERCENTAGES = (10, 20, 25, 30, 40, 50)
RISES = ("rises by {n} %", "goes up by {n} %", "is {n} % higher")
FALLS = ("falls by {n} %", "goes down by {n} %", "is {n} % lower")

MEANS, TOTALS = ("average", "mean"), ("total", "sum of the")
HIGHEST, LOWEST = ("highest", "largest"), ("lowest", "smallest")

REQUESTS: Mapping[str, tuple[str, ...]] = {
    "color": (
        "Colour the map by {noun}.",
        "Let the colours of the map show the {noun}.",
        "I want a map coloured by {noun}.",
    ),
    "size": (
        "Let the size of the circles show the {noun}.",
        "Make the circles larger where the {noun} is higher.",
        "I want circles as large as the {noun}.",
    ),
    "what-if": (
        "What if {parameter} {change}? I need the {figure}.",
        "Suppose {parameter} {change}. What is the {figure} then?",
        "How high is the {figure} if {parameter} {change}?",
    ),
    "top": (
        "Which {category} has the {extreme} {average} {noun}?",
        "Name the {category} with the {extreme} {average} {noun}.",
        "By {category}, where is the {average} {noun} {extreme}?",
    ),
    "filter": (
        "What is the {average} {noun} where the {category} is {value}?",
        "For {category} {value} only: what is the {average} {noun}?",
        "I need the {average} {noun} of all rows of {category} {value}.",
    ),
    "missing": (
        "How many rows miss the {noun}?",
        "How often is the {noun} missing?",
        "In how many rows is there no {noun}?",
    ),
}
"""Kind of request → phrasings. "color" and "size" belong to the family "chart"."""

FAMILIES = ("chart", "what-if", "top", "filter", "missing")
"""Kinds of tasks. Results are reported for each of them."""

_ASKED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "chart": (("color", "size"), tuple(MEASURES)),
    "what-if": (tuple(f"{sign}{n}" for sign in "+-" for n in PERCENTAGES), tuple(PARAMETERS)),
    "top": (("mean-down", "mean-up", "total-down", "total-up"), tuple(MEASURES)),
    "filter": (("mean", "total"), tuple(MEASURES)),
    "missing": (("missing",), tuple(MEASURES)),
}
"""Family → what may be asked, and about what."""


@cache
def pairs(split_seed: int, family: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Divide the pairs of a question and its subject among the three splits, in proportion to 7 : 1 : 2.

    A pair that is asked for in training is never asked for in a test.
    """
    all_pairs = list(product(*_ASKED[family]))
    order = np.random.default_rng(named_seed("analyses-pairs", split_seed, family)).permutation(len(all_pairs))
    first, second = int(0.7 * len(all_pairs)), int(0.8 * len(all_pairs))
    parts = order[:first], order[first:second], order[second:]
    return tuple(tuple(all_pairs[i] for i in part) for part in parts)
