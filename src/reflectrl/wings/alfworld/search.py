"""The searching expert: it knows only what has been seen, looks in likely places first, and never looks twice.

`advise` returns the next command together with the reasons for it, from which the analyst makes its sentence.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from reflectrl.wings.alfworld.beliefs import Beliefs, by_promise, kind_of, number_of, numbered
from reflectrl.wings.alfworld.game import TREATMENTS, Goal


class Advice(NamedTuple):
    """A command, and the reason for it in a few words."""

    command: str
    because: str


def advise(beliefs: Beliefs, goal: Goal, legal: Collection[str], prior: bool = True) -> Advice:
    """Return the next command and the reason for it.

    Args:
        legal: the commands that are possible now.
        prior: look in likely places first. If False, search places in order of their names.
    """
    if beliefs.held and kind_of(beliefs.held) != goal.kind:
        return _put_away(beliefs, legal)
    if goal.lamp:
        return _to_lamp(beliefs, goal, legal, prior) if beliefs.held else _fetch(beliefs, goal, legal, prior)
    if beliefs.held and not is_prepared(beliefs, goal, beliefs.held):
        return _prepare(beliefs, goal, legal)
    return _deliver(beliefs, goal, legal) if beliefs.held else _fetch(beliefs, goal, legal, prior)


def target(beliefs: Beliefs, goal: Goal) -> str:
    """Return the receptacle to bring things to: where one was put already, else the one at hand, else the first."""
    places = [place for place in beliefs.places if kind_of(place) == goal.receptacle]
    return max(places, key=lambda p: (delivered(beliefs, goal, p), p == beliefs.at, -number_of(p)))


def delivered(beliefs: Beliefs, goal: Goal, place: str) -> int:
    """Count the things at a place that are known to fulfil the goal: of its kind, and in the state it asks for."""
    return sum(kind_of(t) == goal.kind and is_prepared(beliefs, goal, t) for t in beliefs.seen.get(place, ()))


def is_prepared(beliefs: Beliefs, goal: Goal, thing: str) -> bool:
    """Return whether a thing is known to be in the state that the goal asks for."""
    return not goal.state or (TREATMENTS[goal.state].verb, thing) in beliefs.done


def _put_away(beliefs: Beliefs, legal: Collection[str]) -> Advice:
    because = f"Holding {beliefs.held}, which is not needed."
    places = sorted(c for c in legal if c.startswith((f"move {beliefs.held} to", f"put {beliefs.held} in/on")))
    if places:
        return Advice(places[0], because)
    return _go(beliefs, beliefs.taken_from, legal, because)


def _to_lamp(beliefs: Beliefs, goal: Goal, legal: Collection[str], prior: bool) -> Advice:
    lamps = sorted(c for c in legal if c.startswith(f"use {goal.lamp} "))
    because = f"Holding {beliefs.held}."
    if lamps:
        return Advice(lamps[0], f"{because} Here is a {goal.lamp}.")
    located = beliefs.where(goal.lamp)
    if located:
        lamp, place = located[0]
        return _go(beliefs, place, legal, f"{because} {lamp} is at {place}.")
    return _search(beliefs, goal.lamp, legal, because, prior)


def _prepare(beliefs: Beliefs, goal: Goal, legal: Collection[str]) -> Advice:
    verb, tool, _ = TREATMENTS[goal.state]
    because = f"Holding {beliefs.held}, not {goal.state} yet."
    here = sorted(c for c in legal if c.startswith(f"{verb} {beliefs.held} with {tool} "))
    if here:
        return Advice(here[0], because)
    place = next(place for place in beliefs.places if kind_of(place) == tool)
    return _go(beliefs, place, legal, because, door=False)


def _deliver(beliefs: Beliefs, goal: Goal, legal: Collection[str]) -> Advice:
    place = target(beliefs, goal)
    state = f", {goal.state}" if goal.state else ""
    because = f"Holding {beliefs.held}{state}, for {place}."
    for command in (f"move {beliefs.held} to {place}", f"put {beliefs.held} in/on {place}"):
        if command in legal:
            return Advice(command, because)
    return _go(beliefs, place, legal, because)


def _fetch(beliefs: Beliefs, goal: Goal, legal: Collection[str], prior: bool) -> Advice:
    place = target(beliefs, goal) if goal.receptacle else ""
    count = delivered(beliefs, goal, place)
    because = f"{count} of {goal.count} is in {place}." if count else ""
    located = beliefs.where(goal.kind)
    located = [(t, p) for t, p in located if p != place or not count or not is_prepared(beliefs, goal, t)]
    if not located:
        return _search(beliefs, goal.kind, legal, because, prior)
    takeable = [(t, p) for t, p in located if f"take {t} from {p}" in legal]
    thing, where = (takeable or located)[0]
    because = f"{because} {thing} is at {where}.".lstrip()
    if takeable:
        return Advice(f"take {thing} from {where}", because)
    return _go(beliefs, where, legal, because)


def _go(beliefs: Beliefs, place: str, legal: Collection[str], because: str, door: bool = True) -> Advice:
    """Go to a place, and through its door. If the player is there already, only look at the place."""
    commands = (f"open {place}" if door else "", f"go to {place}", f"examine {place}")
    return Advice(next(command for command in commands if command in legal), because)


def _search(beliefs: Beliefs, kind: str, legal: Collection[str], because: str, prior: bool) -> Advice:
    """Look where a thing of that kind may be."""
    because = f"{because} Looking for a {kind}.".lstrip()
    left = beliefs.left()
    if not left:  # everything was looked at: something has escaped these beliefs, so look again
        left = [place for place in beliefs.places if f"go to {place}" in legal]
    place, *_ = by_promise(left, kind, prior)
    because = f"{because} Left: {numbered([p for p in left if kind_of(p) == kind_of(place)])}."
    return _go(beliefs, place, legal, because)


def reached(beliefs: Beliefs, goal: Goal) -> frozenset[str]:
    """Return the milestones reached so far.

    They are: "found" (a thing of the goal's kind was seen), "taken" (it is in the hand), "prepared" (it is in the state
    asked for, or a lamp is lit if the goal needs one), "placed" (it lies where it belongs).
    """
    milestones = set()
    holding = kind_of(beliefs.held) == goal.kind
    if holding or beliefs.where(goal.kind):
        milestones.add("found")
    if holding:
        milestones.add("taken")
    verb = TREATMENTS[goal.state].verb if goal.state else ""
    has_prepared = any(done == verb and kind_of(thing) == goal.kind for done, thing in beliefs.done)
    if any(kind_of(lamp) == goal.lamp for lamp in beliefs.lit) or has_prepared:
        milestones.add("prepared")
    if goal.receptacle and any(delivered(beliefs, goal, p) for p in beliefs.seen if kind_of(p) == goal.receptacle):
        milestones.add("placed")
    return frozenset(milestones)
