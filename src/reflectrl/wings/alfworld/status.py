"""The status: a summary of the text so far, in a few short lines that stand where small models find them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from reflectrl.wings.alfworld.beliefs import Beliefs, by_promise, kind_of, likely_places, numbered
from reflectrl.wings.alfworld.game import Goal
from reflectrl.wings.alfworld.search import delivered, target

KINDS_SHOWN = 4
"""Largest number of kinds of places listed for a missing thing. The others are listed once these have been searched."""
_WORD = re.compile("[a-z]+")


def plain_status(beliefs: Beliefs, wording: str) -> str:
    """Summarise the text so far, in a few short lines whatever its length.

    They are: the task; what is in the hand and was done to it; what is at the current place; the places of things that
    the task names; the places not looked at yet, as numbers by kind; and whether the last command was wasted.

    Args:
        wording: the task in words.
    """
    kinds = {kind_of(thing) for things in beliefs.seen.values() for thing in things} & set(_words(wording))
    seen = [f"{thing} at {place}" for kind in sorted(kinds) for thing, place in beliefs.where(kind)]
    left = " ".join(_by_kind(beliefs.left()))
    lines = {"Seen": ", ".join(seen) or "nothing", "Left": left or "nothing"}
    return _lines(beliefs, wording, _holding(beliefs), lines)


def guiding_status(beliefs: Beliefs, wording: str, legal: Collection[str], prior: bool = True) -> str:
    """Return a status that guides: for each kind of thing in the task that is not in the hand, where to find one.

    It lists where things of the kind were seen (within reach first). If none was seen, it lists the places that were
    not looked at yet, the most promising first, so it also says what was *not* seen. For a task that brings two things
    somewhere, the ones already there are listed apart. It also names the other places within reach, because "go to" is
    not admissible for them. A task whose words name no kind of thing (people's words, say) has the plain status.

    Args:
        wording: the task in words.
        legal: the commands that are possible now.
        prior: sort places by promise (see `likely_places`). If False, they are sorted by name.
    """
    words = _words(wording)
    kinds = [word for word in words if word in likely_places()]
    if not kinds:
        return plain_status(beliefs, wording)
    beside = [place for place in beliefs.places if place != beliefs.at and f"examine {place}" in legal]
    lines = {"Also here": ", ".join(beside)} if beside else {}
    settled = _settled(beliefs, kinds[0], words)
    if settled:
        lines["In place"] = _located(settled, legal)
    for kind in (kind for kind in kinds if not beliefs.held or kind != kind_of(beliefs.held)):
        seen = [pair for pair in beliefs.where(kind) if pair not in settled]
        if seen:
            lines[f"Seen {kind}"] = _located(seen, legal)
        else:
            left = by_promise(beliefs.left(), kind, prior)
            first = f" (the first is {_reach(left[0], legal)})" if left and _reach(left[0], legal) else ""
            places = _by_kind(left)
            more = ["..."] if len(places) > KINDS_SHOWN else []
            lines[f"Left for {kind}{first}"] = ", ".join([*places[:KINDS_SHOWN], *more]) or "nothing"
    unasked = " (not asked for)" if beliefs.held and kind_of(beliefs.held) not in kinds else ""
    return _lines(beliefs, wording, _holding(beliefs) + unasked, lines)


def _reach(place: str, legal: Collection[str]) -> str:
    """Return "here" for a place within reach, "here, shut" if it is also closed, and "" if the player must go there."""
    if f"examine {place}" not in legal:
        return ""
    return "here, shut" if f"open {place}" in legal else "here"


def _located(things: Iterable[tuple[str, str]], legal: Collection[str]) -> str:
    """Format things and their places, within reach first."""
    texts = [(reach := _reach(place, legal), f"{thing} at {place}{reach and f' ({reach})'}") for thing, place in things]
    return ", ".join(text for _, text in sorted(texts, key=lambda pair: not pair[0]))


def _words(wording: str) -> Sequence[str]:
    """Return the words of a task, each once, in order."""
    return list(dict.fromkeys(_WORD.findall(wording.lower())))


def _holding(beliefs: Beliefs) -> str:
    done = " ".join(verb for verb, thing in sorted(beliefs.done) if thing == beliefs.held)
    return f"{beliefs.held or 'nothing'}{done and f' ({done})'}"


def _lines(beliefs: Beliefs, wording: str, holding: str, others: dict[str, str]) -> str:
    here = "closed" if beliefs.at in beliefs.shut else ", ".join(sorted(beliefs.seen.get(beliefs.at, ())))
    lines = {"Task": wording, "Holding": holding, "At": f"{beliefs.at or 'nowhere'}: {here or 'nothing'}", **others}
    wasted = "" if beliefs.fresh else "New: nothing\n"
    return "".join(f"{name}: {text}\n" for name, text in lines.items()) + wasted


def _settled(beliefs: Beliefs, kind: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return (thing, place) pairs that already lie at the target, if the task is to bring two things somewhere."""
    places = [word for word in words if any(kind_of(place) == word for place in beliefs.places)]
    if "two" not in words or not places:
        return []
    goal = Goal(kind, places[-1], count=2)
    place = target(beliefs, goal)
    return [pair for pair in beliefs.where(kind) if pair[1] == place] if delivered(beliefs, goal, place) else []


def _by_kind(places: Iterable[str]) -> list[str]:
    """Format places as "cabinet 1 2 3 ..." (see `numbered`), a text per kind, in the order of their first ones."""
    kinds: dict[str, list[str]] = {}
    for place in places:
        kinds.setdefault(kind_of(place), []).append(place)
    return [numbered(group) for group in kinds.values()]
