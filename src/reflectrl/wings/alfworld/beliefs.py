"""The belief state: a player's knowledge of a house, gathered only from the text that it was shown."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files

SEEN = re.compile(r"(?:On the|The) ([\w ]{1,100}?)(?:,| is open\. In it,) you see ([^.\n]{1,2000}+)\.")
SHUT = re.compile(r"The ([\w ]{1,100}) is closed\.")
TAKEN = re.compile(r"You pick up the ([\w ]{1,100}) from the ([\w ]{1,100})\.")
PUT = re.compile(r"You (?:move|put) the ([\w ]{1,100}) (?:to|in/on) the ([\w ]{1,100})\.")
TREATED = re.compile(r"You (heat|cool|clean) the ([\w ]{1,100}) using the ")
LIT = re.compile(r"You turn on the ([\w ]{1,100})\.")
NUMBERS_SHOWN = 3
"""Largest number of places of a kind that are listed. The others are listed once these have been looked at."""
AROUND = re.compile(r"Looking quickly around you, you see ([^.\n]++)\.")


def kind_of(name: str) -> str:
    """Return the kind in a name: "mug" for "mug 2"."""
    return name.rpartition(" ")[0]


def number_of(name: str) -> int:
    """Return the number in a name: 2 for "mug 2"."""
    return int(name.rpartition(" ")[2])


def names_in(text: str) -> list[str]:
    """Return the things in a list such as "a mug 1, a pen 2, and a book 1"."""
    return [] if text == "nothing" else [part.removeprefix("and ").removeprefix("a ") for part in text.split(", ")]


@dataclass
class Beliefs:
    """A belief state.

    Attributes:
        places: every receptacle, by kind and number.
        seen: receptacle → what was last seen in or on it.
        shut: receptacles that were found closed and not opened since.
        at: the receptacle gone to last.
        held, taken_from: what is in the hand, and where it was.
        done: treatments so far, as (verb, thing): ("heat", "mug 2").
        lit: lamps that were switched on.
        fresh: True if the last command revealed or changed anything.
    """

    places: tuple[str, ...] = ()
    seen: dict[str, frozenset[str]] = field(default_factory=dict)
    shut: set[str] = field(default_factory=set)
    at: str = ""
    held: str = ""
    taken_from: str = ""
    done: set[tuple[str, str]] = field(default_factory=set)
    lit: set[str] = field(default_factory=set)
    fresh: bool = True

    @classmethod
    def begin(cls, introduction: str) -> Beliefs:
        """Return the belief state after the first text."""
        around = AROUND.search(introduction)
        names = names_in(around.group(1)) if around else []
        return cls(tuple(sorted(names, key=lambda name: (kind_of(name), number_of(name)))))

    def copy(self) -> Beliefs:
        """Return a copy that later texts do not alter."""
        other = copy.copy(self)
        other.seen, other.shut = dict(self.seen), set(self.shut)
        other.done, other.lit = set(self.done), set(self.lit)
        return other

    def add(self, command: str, said: str) -> None:
        """Update the beliefs with a command and its reply."""
        self.fresh = False
        if command.startswith("go to ") and said.startswith("You arrive"):
            self.at = command.removeprefix("go to ")
        if shut := SHUT.search(said):
            self.fresh |= shut.group(1) not in self.shut | self.seen.keys()
            self.shut.add(shut.group(1))
        if seen := SEEN.search(said):
            place, things = seen.group(1), frozenset(names_in(seen.group(2)))
            self.fresh |= self.seen.get(place) != things
            self.shut.discard(place)
            self.seen[place] = things
        if command.startswith("close ") and said.startswith("You close"):
            self.shut.add(command.removeprefix("close "))
        self._add_change(said)

    def _add_change(self, said: str) -> None:
        if taken := TAKEN.search(said):
            self.held, self.taken_from = taken.groups()
            self.seen[self.taken_from] = self.seen.get(self.taken_from, frozenset()) - {self.held}
        elif put := PUT.search(said):
            self.held = ""
            self.seen[put.group(2)] = self.seen.get(put.group(2), frozenset()) | {put.group(1)}
        elif treated := TREATED.search(said):
            verb, thing = treated.groups()
            self.done -= {("cool" if verb == "heat" else "heat", thing)} if verb != "clean" else set()
            self.done.add((verb, thing))
        elif lit := LIT.search(said):
            self.lit.add(lit.group(1))
        else:
            return
        self.fresh = True

    def where(self, kind: str) -> list[tuple[str, str]]:
        """Return (thing, place) for every thing of a kind whose place is known, in order."""
        pairs = [(thing, place) for place in self.seen for thing in self.seen[place] if kind_of(thing) == kind]
        return sorted(pairs, key=lambda pair: (kind_of(pair[1]), number_of(pair[1]), number_of(pair[0])))

    def left(self) -> list[str]:
        """Return the places that were not looked at yet."""
        return [place for place in self.places if place not in self.seen]


def numbered(places: Sequence[str]) -> str:
    """Format places of the same kind as "cabinet 1 2 3 ...": the kind, then the first numbers."""
    numbers = [str(number_of(place)) for place in places]
    more = " ..." if len(numbers) > NUMBERS_SHOWN else ""
    return f"{kind_of(places[0])} {' '.join(numbers[:NUMBERS_SHOWN])}{more}"


@lru_cache(maxsize=1)
def likely_places() -> dict[str, list[str]]:
    """Kind of thing → kinds of receptacles, the most promising first.

    The score is the share of receptacles of the kind that hold such a thing at the start of ALFWorld's training games,
    divided by the commands that a look takes (two if there is a door). `benchmarks/alfworld_places.py` of commit
    bc64836 counted it.
    """
    receptacle_kinds: dict[str, list[str]] = json.loads(
        files("reflectrl.wings.alfworld").joinpath("likely_places.json").read_text(encoding="utf-8")
    )
    return receptacle_kinds


def by_promise(places: Iterable[str], kind: str, prior: bool = True) -> list[str]:
    """Sort places by how promising they are for finding a thing of a kind.

    Places of the same kind stand together, by number. Kinds of places that never held such a thing come last, by name.

    Args:
        prior: use the statistics of likely places. If False, all places are sorted by name.
    """
    order = likely_places().get(kind, []) if prior else []
    rank = {place_kind: index for index, place_kind in enumerate(order)}
    return sorted(places, key=lambda name: (rank.get(kind_of(name), len(rank)), kind_of(name), number_of(name)))
