"""How far a household task has come."""

from __future__ import annotations

from reflectrl.wings.alfworld.beliefs import Beliefs, kind_of
from reflectrl.wings.alfworld.game import TREATMENTS, Goal
from reflectrl.wings.alfworld.search import delivered


def reached(beliefs: Beliefs, goal: Goal) -> frozenset[str]:
    """The milestones that stand reached.

    They are: "found" (a thing of the goal's kind was seen), "taken" (it is in the hand), "prepared" (it is in the state
    asked for, or a lamp is lit where one is needed), "placed" (it lies where it belongs).
    """
    found = set()
    holding = kind_of(beliefs.held) == goal.kind
    if holding or beliefs.where(goal.kind):
        found.add("found")
    if holding:
        found.add("taken")
    if any(kind_of(lamp) == goal.lamp for lamp in beliefs.lit) or _is_prepared(beliefs, goal):
        found.add("prepared")
    if goal.receptacle and any(delivered(beliefs, goal, p) for p in beliefs.seen if kind_of(p) == goal.receptacle):
        found.add("placed")
    return frozenset(found)


def _is_prepared(beliefs: Beliefs, goal: Goal) -> bool:
    return bool(goal.state) and any(
        verb == TREATMENTS[goal.state].verb and kind_of(thing) == goal.kind for verb, thing in beliefs.done
    )
