"""Compiler of ALFWorld's files, `initial_state.pddl` and `traj_data.json`, to a game."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reflectrl.wings.alfworld.game import ABILITIES, TREATMENTS, TYPES, Game, GameError, Goal, Receptacle, Thing
from reflectrl.wings.alfworld.pddl import Fact, parse_problem

_STATE_OF = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced", "istoggled": "toggled"}
_KNOWN = {
    *_STATE_OF, *ABILITIES, "objecttype", "receptacletype", "cancontain", "receptacleatlocation", "objectatlocation",
    "inreceptacle", "inreceptacleobject", "atlocation", "openable", "opened", "wasinreceptacle", "ison", "moveable",
    "full", "checked", "examined", "isreceptacleobjectfull",
}  # fmt: skip


def compile_game(game_id: str, problem: str, trajectory: Mapping[str, Any], wording: str = "") -> Game:
    """Compile a game from the text of `initial_state.pddl` and the content of `traj_data.json`.

    Raises:
        PddlError, GameError: the problem cannot be read, is of another task type, or lacks what its goal asks for.
    """
    facts, literals = parse_problem(problem)
    unknown = {fact[0] for fact in facts} - _KNOWN
    if unknown:
        raise GameError(f"unknown facts: {', '.join(sorted(unknown))}")
    task_type = str(trajectory.get("task_type"))
    if task_type not in TYPES:
        raise GameError(f"task type {task_type!r} is none of {', '.join(TYPES)}")
    try:
        annotations = trajectory.get("turk_annotations", {}).get("anns", [])
        wordings = tuple(
            annotation["task_desc"].strip() for annotation in annotations if annotation.get("task_desc", "").strip()
        )
        game = _assemble(game_id, task_type, facts, _goal(task_type, literals), wording, wordings)
    except GameError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError) as error:  # a name without a kind, a fact too short
        raise GameError(f"its facts do not fit together: {error!r}") from error
    _require_possible(game)
    return game


def _goal(task_type: str, literals: frozenset[Fact]) -> Goal:
    """Return the goal in the literals. Raise GameError if they do not match the task type."""
    kinds = {fact[1]: fact[2].removesuffix("type") for fact in literals if fact[0] in ("objecttype", "receptacletype")}
    variables = {fact[0]: fact[1:] for fact in literals}
    states = [state for predicate, state in _STATE_OF.items() if predicate in variables and state != "toggled"]
    if "holds" in variables:
        if "istoggled" not in variables:
            raise GameError("its goal is to hold an object without a lamp")
        return Goal(kinds[variables["holds"][1]], lamp=kinds[variables["istoggled"][0]])
    placed = [fact for fact in literals if fact[0] == "inreceptacle"]
    if not placed or len(placed) > 2 or len(states) > 1:
        raise GameError("its goal matches none of ALFWorld's task types")
    goal = Goal(kinds[placed[0][1]], kinds[placed[0][2]], states[0] if states else "", count=len(placed))
    if (goal.count == 2) != (task_type == "pick_two_obj_and_place") or "issliced" in variables:
        raise GameError(f"its goal does not match its task type, {task_type}")
    return goal


def _assemble(
    game_id: str, task_type: str, facts: Sequence[Fact], goal: Goal, wording: str, annotations: tuple[str, ...]
) -> Game:
    by_predicate: dict[str, list[Fact]] = {}
    for fact in facts:
        by_predicate.setdefault(fact[0], []).append(fact)
    # The reference knows the things that occur in facts, whatever else the problem declares.
    ids = {word for fact in facts for word in fact[1:]}
    names = _names(ids)
    things, receptacles = (_index(_pairs(by_predicate, predicate)) for predicate in ("objecttype", "receptacletype"))
    places = _index(word for word in ids if word.startswith("loc_bar_"))
    locations = _pairs(by_predicate, "receptacleatlocation")
    missing = sorted(set(receptacles) - set(locations))
    if missing or "atlocation" not in by_predicate:
        raise GameError(f"it does not say where {missing[0] if missing else 'the player'} is")
    return Game(
        id=game_id,
        type=task_type,
        goal=goal,
        things=_things(by_predicate, things, names),
        receptacles=_receptacles(
            by_predicate, receptacles, names, {r: places[where] for r, where in locations.items()}
        ),
        start=places[by_predicate["atlocation"][0][2]],
        places=tuple(names[place] for place in places),
        inside=_indexed(by_predicate.get("inreceptacle", ()), things, receptacles),
        nested=_indexed(by_predicate.get("inreceptacleobject", ()), things, things),
        at=_indexed(by_predicate.get("objectatlocation", ()), things, places),
        wordings=annotations,
        wording=wording,
    )


def _index(ids: Iterable[str]) -> dict[str, int]:
    """PDDL name → its index in the order of the names."""
    return {name: index for index, name in enumerate(sorted(ids))}


def _pairs(said: Mapping[str, list[Fact]], predicate: str) -> dict[str, str]:
    return {fact[1]: fact[2] for fact in said.get(predicate, ())}


def _ones(said: Mapping[str, list[Fact]], predicate: str) -> set[str]:
    return {fact[1] for fact in said.get(predicate, ())}


def _things(said: Mapping[str, list[Fact]], ids: Iterable[str], names: Mapping[str, str]) -> tuple[Thing, ...]:
    kinds = _pairs(said, "objecttype")
    able = {ability: _ones(said, ability) for ability in ABILITIES}
    states = {state: _ones(said, predicate) for predicate, state in _STATE_OF.items()}
    things = []
    for name in ids:
        abilities = frozenset(ability for ability, owners in able.items() if name in owners)
        initial = frozenset(state for state, owners in states.items() if name in owners)
        things.append(Thing(names[name], kinds[name].removesuffix("type"), abilities, initial))
    return tuple(things)


def _receptacles(
    said: Mapping[str, list[Fact]], ids: Iterable[str], names: Mapping[str, str], locations: Mapping[str, int]
) -> tuple[Receptacle, ...]:
    kinds, openable, opened = _pairs(said, "receptacletype"), _ones(said, "openable"), _ones(said, "opened")
    fits: dict[str, set[str]] = {}
    for _, receptacle_kind, object_kind in said.get("cancontain", ()):
        fits.setdefault(receptacle_kind, set()).add(object_kind.removesuffix("type"))
    return tuple(
        Receptacle(
            names[name],
            kinds[name].removesuffix("type"),
            locations[name],
            name in openable,
            name in opened,
            frozenset(fits.get(kinds[name], ())),
        )
        for name in ids
    )


def _indexed(facts: Sequence[Fact], first: Mapping[str, int], second: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({(first[a], second[b]) for _, a, b in facts}))


def _names(ids: set[str]) -> dict[str, str]:
    """PDDL name → the name that players read: its kind and a number, counted down along the sorted names."""
    ends = {name: "basin" if "basin" in name else "" for name in sorted(ids) if "_bar_" in name}
    kinds = {name: name.split("_bar_", 1)[0] + end for name, end in ends.items()}
    next_number = Counter(kinds.values())
    names = {}
    for name, kind in kinds.items():
        names[name] = f"{kind} {next_number[kind]}"
        next_number[kind] -= 1
    return names


def _require_possible(game: Game) -> None:
    """Raise GameError if a game obviously has no solution."""
    goal = game.goal
    treatment = TREATMENTS.get(goal.state)
    needed = {"pickupable", treatment.ability} if treatment else {"pickupable"}
    reachable = {thing for thing, _ in game.inside}
    wanted = [i for i in reachable if game.things[i].kind == goal.kind and needed <= game.things[i].abilities]
    if len(wanted) < goal.count:
        raise GameError(f"it cannot be won: there are fewer than {goal.count} of {goal.kind} to take")
    if goal.lamp:
        lamps = {i for i, t in enumerate(game.things) if t.kind == goal.lamp and "toggleable" in t.abilities}
        if not lamps & reachable:
            raise GameError(f"it cannot be won: there is no {goal.lamp} to switch on")
        return
    if not any(r.kind == goal.receptacle and goal.kind in r.holds for r in game.receptacles):
        raise GameError(f"it cannot be won: nothing of kind {goal.receptacle} can hold {goal.kind}")
    if treatment and all(r.kind != treatment.tool for r in game.receptacles):
        raise GameError(f"it cannot be won: there is no {treatment.tool}")
