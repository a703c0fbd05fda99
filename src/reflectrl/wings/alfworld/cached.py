"""The compact cached form of a game: one line of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from reflectrl.wings.alfworld.game import ABILITIES, STATES, Game, GameError, Goal, Receptacle, Thing


def to_json(game: Game) -> str:
    """The game as one line of JSON, about 6 kB."""
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
    """A game from its cached form.

    Raises:
        GameError: the line is not one that `to_json` wrote.
    """
    try:
        return _restored(json.loads(line))
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


@cache  # few sets, in many games
def _words(bits: int, order: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word for i, word in enumerate(order) if bits >> i & 1)
