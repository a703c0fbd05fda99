"""Notes about a house in one line: all of the belief state that the next commands may depend on.

A reflector that carries its reflections writes them anew at each step, from its previous notes and from the reply to
the last command. They hold nothing that the text did not show.
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
    parts = [f"Holding {_treated(beliefs, beliefs.held) or 'nothing'}, at {beliefs.at or 'nowhere'}."]
    for kind in filter(None, (goal.kind, goal.lamp)):
        seen = [f"{_treated(beliefs, name)} at {where}" for name, where in beliefs.where(kind)[:MOST_THINGS]]
        if seen:
            parts.append(f"Seen {', '.join(seen)}.")
    searched = sorted(beliefs.seen, key=lambda name: (kind_of(name), number_of(name)))
    if searched:
        parts.append(f"Searched {', '.join(ranges(searched))}.")
    return " ".join(parts)


def ranges(names: Sequence[str]) -> list[str]:
    """Format sorted names as "cabinet 1-3 5", a text per kind."""
    runs: dict[str, list[list[int]]] = {}
    for name in names:
        number, spans = number_of(name), runs.setdefault(kind_of(name), [])
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [f"{kind} {' '.join(map(_range, spans))}" for kind, spans in runs.items()]


def _range(ends: Sequence[int]) -> str:
    first, last = ends
    return str(first) if first == last else f"{first}-{last}"


def _treated(beliefs: Beliefs, name: str) -> str:
    """Return the name of a thing with what was done to it: "mug 1 (clean)"."""
    return name + "".join(f" ({verb})" for verb, treated in sorted(beliefs.done) if treated == name)
