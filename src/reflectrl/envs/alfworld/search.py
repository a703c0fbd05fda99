"""The searching expert: it knows only what has been seen, looks in likely places first, and never looks twice.

`advise` gives the next command together with the reasons for it, from which the analyst makes its sentence.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from reflectrl.envs.alfworld.game import TREATMENTS, Goal
from reflectrl.envs.alfworld.notes import Notes, kind_of, number_of, numbered


class Advice(NamedTuple):
    """A command, and why it is the best one, in a few words."""

    command: str
    because: str


@lru_cache(maxsize=1)
def likely_places() -> dict[str, list[str]]:
    """Kind of thing → kinds of receptacles, the most promising first.

    Promising is the share of receptacles of the kind that hold such a thing at the start of ALFWorld's training games,
    divided by the commands that a look takes (two where there is a door). `benchmarks/alfworld_places.py` counts it.
    """
    found: dict[str, list[str]] = json.loads(
        files("reflectrl.envs.alfworld").joinpath("likely_places.json").read_text(encoding="utf-8")
    )
    return found


def advise(notes: Notes, goal: Goal, legal: Collection[str]) -> Advice:
    """The next command. `legal` are the commands that are possible now."""
    if notes.held and kind_of(notes.held) != goal.kind:
        return _put_away(notes, legal)
    if goal.lamp:
        return _to_lamp(notes, goal, legal) if notes.held else _fetch(notes, goal, legal)
    if notes.held and not is_prepared(notes, goal, notes.held):
        return _prepare(notes, goal, legal)
    return _deliver(notes, goal, legal) if notes.held else _fetch(notes, goal, legal)


def target(notes: Notes, goal: Goal) -> str:
    """The receptacle that things are brought to: where one was put already, else the one at hand, else the first."""
    places = [place for place in notes.places if kind_of(place) == goal.receptacle]
    return max(places, key=lambda p: (delivered(notes, goal, p), p == notes.at, -number_of(p)))


def delivered(notes: Notes, goal: Goal, place: str) -> int:
    """How many things that the goal asks for are known to be at a place, in the state that it asks for."""
    return sum(kind_of(t) == goal.kind and is_prepared(notes, goal, t) for t in notes.seen.get(place, ()))


def is_prepared(notes: Notes, goal: Goal, thing: str) -> bool:
    """Whether a thing is known to be in the state that the goal asks for."""
    return not goal.state or (TREATMENTS[goal.state].verb, thing) in notes.done


def _put_away(notes: Notes, legal: Collection[str]) -> Advice:
    because = f"Holding {notes.held}, which is not needed."
    places = sorted(c for c in legal if c.startswith((f"move {notes.held} to", f"put {notes.held} in/on")))
    if places:
        return Advice(places[0], because)
    return _go(notes, notes.taken_from, legal, because)


def _to_lamp(notes: Notes, goal: Goal, legal: Collection[str]) -> Advice:
    lamps = sorted(c for c in legal if c.startswith(f"use {goal.lamp} "))
    because = f"Holding {notes.held}."
    if lamps:
        return Advice(lamps[0], f"{because} Here is a {goal.lamp}.")
    known = notes.where(goal.lamp)
    if known:
        lamp, place = known[0]
        return _go(notes, place, legal, f"{because} {lamp} is at {place}.")
    return _search(notes, goal.lamp, legal, because)


def _prepare(notes: Notes, goal: Goal, legal: Collection[str]) -> Advice:
    verb, tool, _ = TREATMENTS[goal.state]
    because = f"Holding {notes.held}, not {goal.state} yet."
    here = sorted(c for c in legal if c.startswith(f"{verb} {notes.held} with {tool} "))
    if here:
        return Advice(here[0], because)
    place = next(place for place in notes.places if kind_of(place) == tool)
    return _go(notes, place, legal, because, door=False)


def _deliver(notes: Notes, goal: Goal, legal: Collection[str]) -> Advice:
    place = target(notes, goal)
    state = f", {goal.state}" if goal.state else ""
    because = f"Holding {notes.held}{state}, for {place}."
    for command in (f"move {notes.held} to {place}", f"put {notes.held} in/on {place}"):
        if command in legal:
            return Advice(command, because)
    return _go(notes, place, legal, because)


def _fetch(notes: Notes, goal: Goal, legal: Collection[str]) -> Advice:
    place = target(notes, goal) if goal.receptacle else ""
    count = delivered(notes, goal, place)
    because = f"{count} of {goal.count} is in {place}." if count else ""
    known = [(t, p) for t, p in notes.where(goal.kind) if p != place or not count or not is_prepared(notes, goal, t)]
    if not known:
        return _search(notes, goal.kind, legal, because)
    takeable = [(t, p) for t, p in known if f"take {t} from {p}" in legal]
    thing, where = (takeable or known)[0]
    because = f"{because} {thing} is at {where}.".lstrip()
    if takeable:
        return Advice(f"take {thing} from {where}", because)
    return _go(notes, where, legal, because)


def _go(notes: Notes, place: str, legal: Collection[str], because: str, door: bool = True) -> Advice:
    """To a place, and through its door; one that stands where the player is already is only looked at."""
    commands = (f"open {place}" if door else "", f"go to {place}", f"examine {place}")
    return Advice(next(command for command in commands if command in legal), because)


def _search(notes: Notes, kind: str, legal: Collection[str], because: str) -> Advice:
    """Look where a thing of that kind may be."""
    because = f"{because} Looking for a {kind}.".lstrip()
    left = [place for place in notes.places if place not in notes.seen]
    if not left:  # everything was looked at: something has escaped these notes, so look again
        left = [place for place in notes.places if f"go to {place}" in legal]
    order = likely_places().get(kind, [])
    rank = {place_kind: number for number, place_kind in enumerate(order)}
    place = min(left, key=lambda p: (rank.get(kind_of(p), len(rank)), kind_of(p), number_of(p)))
    because = f"{because} Left: {numbered([p for p in left if kind_of(p) == kind_of(place)])}."
    return _go(notes, place, legal, because)
