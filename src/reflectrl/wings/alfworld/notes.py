"""Notes about a house in one line: all of the belief state that the next commands may depend on.

A reflector that carries its reflections writes them anew at each step, from its previous notes and from the reply to
the last command. Nothing in them is known from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.wings.alfworld.beliefs import Beliefs, kind_of, number_of
from reflectrl.wings.alfworld.game import Goal

MOST_THINGS = 3
"""Largest number of things of a kind whose places are noted."""


def notes(beliefs: Beliefs, goal: Goal) -> str:
    """Write what is held and was done to it, the position, where things of the task were seen, and what was searched.

    Args:
        goal: names the kinds of things that matter. The text of the task names them too.
    """
    done = "".join(f" ({verb})" for verb, thing in sorted(beliefs.done) if thing == beliefs.held)
    parts = [f"Holding {beliefs.held or 'nothing'}{done}, at {beliefs.at or 'nowhere'}."]
    for kind in filter(None, (goal.kind, goal.lamp)):
        seen = [_located(beliefs, *pair) for pair in beliefs.where(kind)[:MOST_THINGS]]
        if seen:
            parts.append(f"Seen {', '.join(seen)}.")
    searched = sorted(beliefs.seen, key=lambda place: (kind_of(place), number_of(place)))
    if searched:
        parts.append(f"Searched {', '.join(ranges(searched))}.")
    return " ".join(parts)


def ranges(places: Sequence[str]) -> list[str]:
    """Format sorted places as "cabinet 1-3 5", a text per kind."""
    kinds: dict[str, list[list[int]]] = {}
    for place in places:
        number, runs = number_of(place), kinds.setdefault(kind_of(place), [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [
        f"{kind} {' '.join(str(first) if first == last else f'{first}-{last}' for first, last in runs)}"
        for kind, runs in kinds.items()
    ]


def _located(beliefs: Beliefs, thing: str, place: str) -> str:
    """Format a thing with its place, and with what was done to it."""
    done = "".join(f" ({verb})" for verb, treated in sorted(beliefs.done) if treated == thing)
    return f"{thing}{done} at {place}"
