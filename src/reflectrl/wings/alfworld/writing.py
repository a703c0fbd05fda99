"""Writer of a household and its task in ALFWorld's official form, the text of `initial_state.pddl`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import indent

from reflectrl.wings.alfworld.game import Goal
from reflectrl.wings.alfworld.rooms import ABLE, FIXED, HOLDS, ROOMS


@dataclass(frozen=True)
class Fixture:
    """A receptacle: its PDDL name, kind, location and whether it opens."""

    name: str
    kind: str
    location: str
    openable: bool


@dataclass
class Household:
    """Content of a problem. Names are PDDL's, kinds are spelled as in the official files.

    Attributes:
        things: name → kind.
        inside: (thing, receptacle).
        nested: (thing, the thing that it lies in).
        at: (thing, location).
        spots: every location.
        start: where the player begins.
    """

    receptacles: Sequence[Fixture]
    spots: Sequence[str]
    start: str
    things: dict[str, str] = field(default_factory=dict)
    inside: list[tuple[str, str]] = field(default_factory=list)
    nested: list[tuple[str, str]] = field(default_factory=list)
    at: list[tuple[str, str]] = field(default_factory=list)
    cool: list[str] = field(default_factory=list)


def problem_text(trial: str, household: Household, goal: Goal) -> str:
    """Return the problem, in the sections of ALFWorld's own files."""
    return (
        f"\n(define (problem plan_{trial})\n(:domain alfred)\n(:objects\nagent1 - agent\n"
        f"{_lines(_declarations(household))}\n        )\n\n\n(:init\n\n\n"
        f"{_lines(_facts(household))}\n        )\n\n\n"
        f"{indent(_goal(goal), ' ' * 8)}\n    )\n"
    )


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(f"        {text}" for text in texts)


def _declarations(household: Household) -> list[str]:
    kinds = {kind for room in ROOMS.values() for kind in (*room.always.split(), *room.sometimes, *room.fixtures)}
    kinds |= set(household.things.values())
    holders = {kind for room in ROOMS.values() for kind in room.receptacles}
    return [
        *(f"{kind}Type - otype" for kind in sorted(kinds)),
        *(f"{kind}Type - rtype" for kind in sorted(holders)),
        *(f"{name} - object" for name in sorted(household.things)),
        *(f"{receptacle.name} - receptacle" for receptacle in household.receptacles),
        *(f"{spot} - location" for spot in household.spots),
    ]


def _facts(household: Household) -> list[str]:
    """The facts, by predicate in the order of the official files."""
    things, receptacles = household.things, household.receptacles
    kinds = set(things.values())
    holders = sorted({receptacle.kind for receptacle in receptacles})
    facts: list[tuple[str, ...]] = [("receptacleType", fixture.name, f"{fixture.kind}Type") for fixture in receptacles]
    facts += [("objectType", name, f"{kind}Type") for name, kind in things.items()]
    facts += [("canContain", f"{r}Type", f"{kind}Type") for r in holders for kind in HOLDS.get(r, ()) if kind in kinds]
    facts += [("pickupable", name) for name, kind in things.items() if kind not in FIXED]
    facts += [("isReceptacleObject", name) for name, kind in things.items() if kind in ABLE["isReceptacleObject"]]
    facts += [("openable", fixture.name) for fixture in receptacles if fixture.openable]
    facts.append(("atLocation", "agent1", household.start))
    for ability in ("cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        facts += [(ability, name) for name, kind in things.items() if kind in ABLE[ability]]
        facts += [("isCool", name) for name in household.cool if ability == "coolable"]
    facts += [("inReceptacle", thing, receptacle) for thing, receptacle in household.inside]
    facts += [("inReceptacleObject", inner, outer) for inner, outer in household.nested]
    facts += [("receptacleAtLocation", fixture.name, fixture.location) for fixture in receptacles]
    facts += [("objectAtLocation", thing, spot) for thing, spot in household.at]
    return [f"({' '.join(fact)})" for fact in facts]


_PLACED = """\
(:goal
    (and
        (exists (?r - receptacle)
            (exists (?o - object)
                (and
{literals}
                )
            )
        )
    )
)"""

_TWO = """\
(:goal
    (and
        (exists (?r - receptacle)
            (exists (?o1 - object)
                (and
                    (objectType ?o1 {kind}Type)
                    (receptacleType ?r {receptacle}Type)
                    (inReceptacle ?o1 ?r)
                    (exists (?o2 - object)
                        (and
                            (not (= ?o1 ?o2))
                            (objectType ?o2 {kind}Type)
                            (receptacleType ?r {receptacle}Type)
                            (inReceptacle ?o2 ?r)
                        )
                    )
                )
            )
        )
    )
)"""

_LIT = """\
(:goal
    (and
        (exists (?ot - object
                 ?r - receptacle
                 ?a - agent
                 ?l - location)
            (and
                (objectType ?ot {lamp}Type)
                (toggleable ?ot)
                (isToggled ?ot)
                (receptacleAtLocation ?r ?l)
                (atLocation ?a ?l)
                (inReceptacle ?ot ?r)
            )
        )
        (exists (?o - object
                 ?a - agent)
            (and
                (objectType ?o {kind}Type)
                (holds ?a ?o)
            )
        )
    )
)"""


def _goal(goal: Goal) -> str:
    if goal.lamp:
        return _LIT.format(kind=goal.kind, lamp=goal.lamp)
    if goal.count == 2:
        return _TWO.format(kind=goal.kind, receptacle=goal.receptacle)
    able, state = {"clean": ("cleanable", "isClean"), "hot": ("heatable", "isHot"), "cool": ("coolable", "isCool")}.get(
        goal.state, ("", "")
    )
    literals = [f"({able} ?o)"] * bool(able) + [f"(objectType ?o {goal.kind}Type)"]
    literals += [f"(receptacleType ?r {goal.receptacle}Type)"] + [f"({state} ?o)"] * bool(state)
    literals.append("(inReceptacle ?o ?r)")
    return _PLACED.format(literals=indent("\n".join(literals), " " * 20))
