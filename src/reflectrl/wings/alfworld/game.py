"""A household and its task: what playing needs to know, whatever files it came from.

Names, numbers and orders are those of the reference engine (alfworld 0.4, TextWorld 1.7): things are sorted by their
PDDL names, and of each kind the first has the highest number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from reflectrl.types import named_seed

TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six task types of the official sets."""

SHORT_NAMES = dict(zip(TYPES, ("place", "light", "clean", "heat", "cool", "two"), strict=True))
"""Short names of the task types: stages, and the rows by which results are reported."""

WORDINGS = {
    "pick_and_place_simple": ("put a {obj} in {recep}.", "put some {obj} on {recep}."),
    "look_at_obj_in_light": ("look at {obj} under the {toggle}.", "examine the {obj} with the {toggle}."),
    "pick_clean_then_place_in_recep": ("put a clean {obj} in {recep}.", "clean some {obj} and put it in {recep}."),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}.", "heat some {obj} and put it in {recep}."),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}.", "cool some {obj} and put it in {recep}."),
    "pick_two_obj_and_place": ("put two {obj} in {recep}.", "find two {obj} and put them in {recep}."),
}
"""How the reference words a task: one of two templates, drawn anew whenever its game files are made."""


class Treatment(NamedTuple):
    """How a thing is brought into a state: by a verb, at a kind of receptacle, if it has an ability."""

    verb: str
    tool: str
    ability: str


TREATMENTS = {
    "clean": Treatment("clean", "sinkbasin", "cleanable"),
    "hot": Treatment("heat", "microwave", "heatable"),
    "cool": Treatment("cool", "fridge", "coolable"),
}
"""State → how a thing is brought into it."""

STATES = ("clean", "hot", "cool", "sliced", "toggled")
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isreceptacleobject")


class GameError(ValueError):
    """A game's files do not make a game; the message says why."""


@dataclass(frozen=True)
class Goal:
    """What wins: `count` objects of a kind, `state` ("" for any), in one receptacle of a kind; or, with `lamp`, one
    held beside a lamp of that kind that was switched on. Kinds are in lower case.
    """

    kind: str
    receptacle: str = ""
    state: str = ""
    lamp: str = ""
    count: int = 1


@dataclass(frozen=True)
class Thing:
    """An object: its name as players read it, its kind ("mug"), what can be done with it, and its first state."""

    name: str
    kind: str
    abilities: frozenset[str]
    states: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Receptacle:
    """A receptacle: name, kind, its location (a number), whether it opens, whether it is open, and what fits in."""

    name: str
    kind: str
    location: int
    openable: bool
    opened: bool
    holds: frozenset[str]


@dataclass(frozen=True)
class Game:
    """A household and its task.

    Attributes:
        id: "TASK/TRIAL", the two last folders of the official layout.
        things, receptacles: in the order of the reference (that of their PDDL names).
        start: location where the player begins.
        places: names of the locations ("loc 7"), by number; only the paper's dialect shows them.
        inside: (thing, receptacle) pairs of indices.
        nested: (thing, the thing that it lies in).
        at: (thing, location).
        wordings: ways to put the task in words that people wrote (the official annotations).
        wording: the reference's words if the game has them fixed; else "".
    """

    id: str
    type: str
    goal: Goal
    things: tuple[Thing, ...]
    receptacles: tuple[Receptacle, ...]
    start: int
    places: tuple[str, ...]
    inside: tuple[tuple[int, int], ...]
    nested: tuple[tuple[int, int], ...] = ()
    at: tuple[tuple[int, int], ...] = ()
    wordings: tuple[str, ...] = ()
    wording: str = ""
    plan_length: int = field(default=0, compare=False)

    @property
    def description(self) -> str:
        """The task in the reference's words; which of its two templates is decided by the game's id."""
        if self.wording:
            return self.wording
        template = WORDINGS[self.type][named_seed("alfworld-wording", self.id) % 2]
        goal = self.goal
        return template.format(obj=goal.kind, recep=goal.receptacle, toggle=goal.lamp)

    @cached_property
    def here(self) -> dict[int, tuple[int, ...]]:
        """Location → indices of the receptacles there, in order."""
        found: dict[int, list[int]] = {}
        for index, receptacle in enumerate(self.receptacles):
            found.setdefault(receptacle.location, []).append(index)
        return {location: tuple(indices) for location, indices in found.items()}

    @cached_property
    def travels(self) -> dict[int, dict[str, tuple[str, int]]]:
        """Location → the commands that lead away from it, for every location there is."""
        every = {f"go to {r.name}": ("go", index) for index, r in enumerate(self.receptacles)}
        return {
            place: {text: do for text, do in every.items() if self.receptacles[do[1]].location != place}
            for place in range(len(self.places))
        }
