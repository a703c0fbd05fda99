"""Compiling ALFWorld's files, `initial_state.pddl` and `traj_data.json`, to a game."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from reflectrl.envs.alfworld.game import ABILITIES, TYPES, Game, GameError, Goal, Receptacle, Thing
from reflectrl.envs.alfworld.pddl import Fact, parse_problem

_STATE_OF = {"isclean": "clean", "ishot": "hot", "iscool": "cool", "issliced": "sliced", "istoggled": "toggled"}
_KNOWN = {
    *_STATE_OF, *ABILITIES, "objecttype", "receptacletype", "cancontain", "receptacleatlocation", "objectatlocation",
    "inreceptacle", "inreceptacleobject", "atlocation", "openable", "opened", "wasinreceptacle", "ison", "moveable",
    "full", "checked", "examined", "isreceptacleobjectfull",
}  # fmt: skip


def compile_game(game_id: str, problem: str, trajectory: Mapping[str, Any], wording: str = "") -> Game:
    """A game from the text of `initial_state.pddl` and the content of `traj_data.json`.

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
        game = _assemble(game_id, task_type, facts, _goal(task_type, literals), wording, _annotations(trajectory))
    except GameError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError) as error:  # a name without a kind, a fact too short
        raise GameError(f"its facts do not fit together: {error!r}") from error
    _require_possible(game)
    return game


def _annotations(trajectory: Mapping[str, Any]) -> tuple[str, ...]:
    written = trajectory.get("turk_annotations", {}).get("anns", [])
    return tuple(one["task_desc"].strip() for one in written if one.get("task_desc", "").strip())


def _goal(task_type: str, literals: frozenset[Fact]) -> Goal:
    """The goal that the literals say; they must be those of the task type and no others."""
    kinds = {fact[1]: fact[2].removesuffix("type") for fact in literals if fact[0] in ("objecttype", "receptacletype")}
    variables = {fact[0]: fact[1:] for fact in literals}
    states = [state for predicate, state in _STATE_OF.items() if predicate in variables and state != "toggled"]
    if "holds" in variables:
        if "istoggled" not in variables:
            raise GameError("its goal is to hold an object without a lamp")
        return Goal(kinds[variables["holds"][1]], lamp=kinds[variables["istoggled"][0]])
    placed = [fact for fact in literals if fact[0] == "inreceptacle"]
    if not placed or len(placed) > 2 or len(states) > 1:
        raise GameError("its goal is none that ALFWorld's task types have")
    goal = Goal(kinds[placed[0][1]], kinds[placed[0][2]], states[0] if states else "", count=len(placed))
    if (goal.count == 2) != (task_type == "pick_two_obj_and_place") or "issliced" in variables:
        raise GameError(f"its goal is not that of {task_type}")
    return goal


def _assemble(
    game_id: str, task_type: str, facts: Sequence[Fact], goal: Goal, wording: str, annotations: tuple[str, ...]
) -> Game:
    by_name: dict[str, list[Fact]] = {}
    for fact in facts:
        by_name.setdefault(fact[0], []).append(fact)

    def pairs(predicate: str) -> dict[str, str]:
        return {fact[1]: fact[2] for fact in by_name.get(predicate, ())}

    def ones(predicate: str) -> set[str]:
        return {fact[1] for fact in by_name.get(predicate, ())}

    object_kinds, receptacle_kinds, locations = map(pairs, ("objecttype", "receptacletype", "receptacleatlocation"))
    missing = sorted(set(receptacle_kinds) - set(locations))
    if missing or not by_name.get("atlocation"):
        raise GameError(f"it does not say where {missing[0] if missing else 'the player'} is")
    # The reference knows the things that occur in facts, whatever else the problem declares.
    ids = {word for fact in facts for word in fact[1:]}
    names = _names(ids)
    spots = sorted({word for word in ids if word.startswith("loc_bar_")})
    spot_index = {spot: number for number, spot in enumerate(spots)}
    fits: dict[str, set[str]] = {}
    for _, receptacle_kind, object_kind in by_name.get("cancontain", ()):
        fits.setdefault(receptacle_kind, set()).add(object_kind.removesuffix("type"))
    flags = {name: ones(name) for name in (*ABILITIES, *_STATE_OF, "openable", "opened")}
    things = sorted(object_kinds)
    receptacles = sorted(receptacle_kinds)
    thing_index = {name: number for number, name in enumerate(things)}
    receptacle_index = {name: number for number, name in enumerate(receptacles)}
    return Game(
        id=game_id,
        type=task_type,
        goal=goal,
        things=tuple(
            Thing(
                names[name],
                object_kinds[name].removesuffix("type"),
                frozenset(ability for ability in ABILITIES if name in flags[ability]),
                frozenset(state for predicate, state in _STATE_OF.items() if name in flags[predicate]),
            )
            for name in things
        ),
        receptacles=tuple(
            Receptacle(
                names[name],
                receptacle_kinds[name].removesuffix("type"),
                spot_index[locations[name]],
                name in flags["openable"],
                name in flags["opened"],
                frozenset(fits.get(receptacle_kinds[name], ())),
            )
            for name in receptacles
        ),
        start=spot_index[by_name["atlocation"][0][2]],
        places=tuple(names[spot] for spot in spots),
        inside=_indexed(by_name.get("inreceptacle", ()), thing_index, receptacle_index),
        nested=_indexed(by_name.get("inreceptacleobject", ()), thing_index, thing_index),
        at=_indexed(by_name.get("objectatlocation", ()), thing_index, spot_index),
        wordings=annotations,
        wording=wording,
    )


def _indexed(facts: Sequence[Fact], first: Mapping[str, int], second: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({(first[a], second[b]) for _, a, b in facts}))


def _names(ids: set[str]) -> dict[str, str]:
    """PDDL name → the name that players read: its kind and a number, counted down along the sorted names."""
    kinds = {name: _kind(name) for name in sorted(ids) if "_bar_" in name}
    left = Counter(kinds.values())
    names = {}
    for name, kind in kinds.items():
        names[name] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _kind(name: str) -> str:
    kind = name.split("_bar_", 1)[0]
    return kind + "basin" if "basin" in name else kind


def _require_possible(game: Game) -> None:
    """Refuse a game that can be seen at once to have no solution."""
    goal = game.goal
    able = {"clean": "cleanable", "hot": "heatable", "cool": "coolable"}.get(goal.state, "pickupable")
    wanted = [
        index for index, thing in enumerate(game.things)
        if thing.kind == goal.kind and {"pickupable", able} <= thing.abilities
    ]  # fmt: skip
    reachable = {thing for thing, _ in game.inside}
    if len([index for index in wanted if index in reachable]) < goal.count:
        raise GameError(f"it cannot be won: there are fewer than {goal.count} of {goal.kind} to take")
    if goal.lamp:
        lamps = {i for i, t in enumerate(game.things) if t.kind == goal.lamp and "toggleable" in t.abilities}
        if not lamps & reachable:
            raise GameError(f"it cannot be won: there is no {goal.lamp} to switch on")
        return
    if not any(r.kind == goal.receptacle and goal.kind in r.holds for r in game.receptacles):
        raise GameError(f"it cannot be won: nothing of kind {goal.receptacle} can hold {goal.kind}")
    tool = {"clean": "sinkbasin", "hot": "microwave", "cool": "fridge"}.get(goal.state)
    if tool and all(r.kind != tool for r in game.receptacles):
        raise GameError(f"it cannot be won: there is no {tool}")
