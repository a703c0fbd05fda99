"""The searching expert: it knows only what has been seen, looks in likely places first, and never looks twice.

`advise` gives the next command together with the reasons for it, from which the analyst makes its sentence.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from reflectrl.wings.alfworld.game import TREATMENTS, Goal
from reflectrl.wings.alfworld.likely import by_promise
from reflectrl.wings.alfworld.notes import Notes, kind_of, number_of, numbered


class Advice(NamedTuple):
    """A command, and why it is the best one, in a few words."""

    command: str
    because: str


def advise(notes: Notes, goal: Goal, legal: Collection[str], prior: bool = True) -> Advice:
    """The next command.

    Args:
        legal: the commands that are possible now.
        prior: whether it is known where things are likely to be; if not, places are looked at by name.
    """
    if notes.held and kind_of(notes.held) != goal.kind:
        return _put_away(notes, legal)
    if goal.lamp:
        return _to_lamp(notes, goal, legal, prior) if notes.held else _fetch(notes, goal, legal, prior)
    if notes.held and not is_prepared(notes, goal, notes.held):
        return _prepare(notes, goal, legal)
    return _deliver(notes, goal, legal) if notes.held else _fetch(notes, goal, legal, prior)


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


def _to_lamp(notes: Notes, goal: Goal, legal: Collection[str], prior: bool) -> Advice:
    lamps = sorted(c for c in legal if c.startswith(f"use {goal.lamp} "))
    because = f"Holding {notes.held}."
    if lamps:
        return Advice(lamps[0], f"{because} Here is a {goal.lamp}.")
    known = notes.where(goal.lamp)
    if known:
        lamp, place = known[0]
        return _go(notes, place, legal, f"{because} {lamp} is at {place}.")
    return _search(notes, goal.lamp, legal, because, prior)


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


def _fetch(notes: Notes, goal: Goal, legal: Collection[str], prior: bool) -> Advice:
    place = target(notes, goal) if goal.receptacle else ""
    count = delivered(notes, goal, place)
    because = f"{count} of {goal.count} is in {place}." if count else ""
    known = [(t, p) for t, p in notes.where(goal.kind) if p != place or not count or not is_prepared(notes, goal, t)]
    if not known:
        return _search(notes, goal.kind, legal, because, prior)
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


def _search(notes: Notes, kind: str, legal: Collection[str], because: str, prior: bool) -> Advice:
    """Look where a thing of that kind may be."""
    because = f"{because} Looking for a {kind}.".lstrip()
    left = notes.left()
    if not left:  # everything was looked at: something has escaped these notes, so look again
        left = [place for place in notes.places if f"go to {place}" in legal]
    place, *_ = by_promise(left, kind, prior)
    because = f"{because} Left: {numbered([p for p in left if kind_of(p) == kind_of(place)])}."
    return _go(notes, place, legal, because)
