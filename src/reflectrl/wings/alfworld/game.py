"""A household and its task: all that the game needs, independent of the files it came from.

Names, numbers and orders match the reference engine (alfworld 0.4, TextWorld 1.7): things are sorted by their PDDL
names, and the first of each kind has the highest number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

from reflectrl.core.json_lines import parse_json
from reflectrl.core.types import named_seed

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
"""Short names of the task types, used for stages and for the rows of reports."""

WORDINGS = {
    "pick_and_place_simple": ("put a {obj} in {recep}.", "put some {obj} on {recep}."),
    "look_at_obj_in_light": ("look at {obj} under the {toggle}.", "examine the {obj} with the {toggle}."),
    "pick_clean_then_place_in_recep": ("put a clean {obj} in {recep}.", "clean some {obj} and put it in {recep}."),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}.", "heat some {obj} and put it in {recep}."),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}.", "cool some {obj} and put it in {recep}."),
    "pick_two_obj_and_place": ("put two {obj} in {recep}.", "find two {obj} and put them in {recep}."),
}
"""The reference's two wordings of each task type. It draws one at random whenever it makes its game files."""


class Treatment(NamedTuple):
    """A treatment of a thing: a verb, the kind of receptacle that does it, and the ability that the thing needs."""

    verb: str
    tool: str
    ability: str


TREATMENTS = {
    "clean": Treatment("clean", "sinkbasin", "cleanable"),
    "hot": Treatment("heat", "microwave", "heatable"),
    "cool": Treatment("cool", "fridge", "coolable"),
}
"""State → the treatment that leads to it."""

STATES = ("clean", "hot", "cool", "sliced", "toggled")
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "sliceable", "toggleable", "isreceptacleobject")


class GameError(ValueError):
    """The files do not form a valid game. The message says why."""


@dataclass(frozen=True)
class Goal:
    """The winning condition: `count` objects of a kind, in `state` ("" for any), in the same receptacle of a kind. With
    `lamp`: an object of the kind in the hand, beside a lamp of that kind that was switched on. Kinds are in lower case.
    """

    kind: str
    receptacle: str = ""
    state: str = ""
    lamp: str = ""
    count: int = 1


@dataclass(frozen=True)
class Thing:
    """An object: its name as players read it, its kind ("mug"), its abilities, and its initial states."""

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
        things, receptacles: in the order of the reference (by PDDL name).
        start: location where the player begins.
        places: names of the locations ("loc 7"), by number; only the paper's dialect shows them.
        inside: (thing, receptacle) pairs of indices.
        nested: (thing, the thing that it lies in).
        at: (thing, location).
        wordings: the task as people worded it (the official annotations).
        wording: the reference's wording if the game's files fix it; else "".
        plan_length: length of a shortest plan, in commands; 0 if unknown.
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
        """The task in the reference's words. The game's id selects one of the two templates."""
        if self.wording:
            return self.wording
        template = WORDINGS[self.type][named_seed("alfworld-wording", self.id) % 2]
        goal = self.goal
        return template.format(obj=goal.kind, recep=goal.receptacle, toggle=goal.lamp)

    @cached_property
    def here(self) -> dict[int, tuple[int, ...]]:
        """Location → indices of the receptacles there, in order."""
        by_location: dict[int, list[int]] = {}
        for index, receptacle in enumerate(self.receptacles):
            by_location.setdefault(receptacle.location, []).append(index)
        return {location: tuple(indices) for location, indices in by_location.items()}

    @cached_property
    def travels(self) -> dict[int, dict[str, tuple[str, int]]]:
        """Location → the commands that lead away from it, for every location."""
        away: dict[int, dict[str, tuple[str, int]]] = {location: {} for location in range(len(self.places))}
        for location, commands in away.items():
            for index, receptacle in enumerate(self.receptacles):
                if receptacle.location != location:
                    commands[f"go to {receptacle.name}"] = ("go", index)
        return away


def to_json(game: Game) -> str:
    """Serialise a game as one line of JSON, about 6 kB."""
    goal = game.goal
    kinds = sorted({kind for receptacle in game.receptacles for kind in receptacle.holds})
    content = {
        "id": game.id,
        "type": game.type,
        "goal": [goal.kind, goal.receptacle, goal.state, goal.lamp, goal.count],
        "things": [[t.name, t.kind, _bits(t.abilities, ABILITIES), _bits(t.states, STATES)] for t in game.things],
        "kinds": kinds,
        "holds": {r.kind: [kinds.index(kind) for kind in sorted(r.holds)] for r in game.receptacles},
        "receptacles": [[r.name, r.kind, r.location, int(r.openable), int(r.opened)] for r in game.receptacles],
        "start": game.start,
        "places": [int(re.sub(r"\D", "", place)) for place in game.places],
        "inside": game.inside,
        "nested": game.nested,
        "at": game.at,
        "wordings": game.wordings,
        "wording": game.wording,
        "plan_length": game.plan_length,
    }
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def from_json(line: str) -> Game:
    """Return a game from its cached form.

    Raises:
        GameError: `to_json` did not write this line.
    """
    try:
        return _restored(parse_json(line))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise GameError(f"not a cached game: {error}") from error


def _restored(content: Mapping[str, Any]) -> Game:
    kinds = content["kinds"]
    holds = {kind: frozenset(kinds[i] for i in fits) for kind, fits in content["holds"].items()}
    return Game(
        id=content["id"],
        type=content["type"],
        goal=Goal(*content["goal"]),
        things=tuple(Thing(n, k, _words(a, ABILITIES), _words(s, STATES)) for n, k, a, s in content["things"]),
        receptacles=tuple(
            Receptacle(name, kind, location, bool(openable), bool(opened), holds[kind])
            for name, kind, location, openable, opened in content["receptacles"]
        ),
        start=content["start"],
        places=tuple(f"loc {number}" for number in content["places"]),
        inside=tuple((a, b) for a, b in content["inside"]),
        nested=tuple((a, b) for a, b in content["nested"]),
        at=tuple((a, b) for a, b in content["at"]),
        wordings=tuple(content["wordings"]),
        wording=content["wording"],
        plan_length=content["plan_length"],
    )


def _bits(words: frozenset[str], order: Sequence[str]) -> int:
    return sum(1 << i for i, word in enumerate(order) if word in words)


@cache  # thousands of games share a few sets
def _words(bits: int, order: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word for i, word in enumerate(order) if bits >> i & 1)
