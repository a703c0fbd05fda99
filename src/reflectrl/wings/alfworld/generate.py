"""Generated games in the official form: rooms, receptacles, objects and a task from a seed, for machines without data.

They follow the proportions of the official sets but are not part of them. Results on them are not ALFWorld scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count, product
from typing import Any

import numpy as np

from reflectrl.core.types import named_seed
from reflectrl.wings.alfworld import rooms
from reflectrl.wings.alfworld.game import TYPES, Goal
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.layout import Layout, Names, drawn_kinds, layout_of
from reflectrl.wings.alfworld.planner import plan
from reflectrl.wings.alfworld.reading import compile_game
from reflectrl.wings.alfworld.writing import Household, problem_text

GameFiles = tuple[str, str, dict[str, Any]]
"""A game's id ("TASK/TRIAL"), the text of `initial_state.pddl`, and the content of `traj_data.json`."""

SHARES = (0.22, 0.09, 0.18, 0.13, 0.15, 0.23)
"""Probability of each of `TYPES`, as in the official sets."""

AMOUNTS = (0.35, 0.35, 0.2, 0.1)
"""Probabilities that a room has one, two, three or four things of a kind."""

PREPARED = {
    "pick_clean_then_place_in_recep": ("clean", "cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("hot", "heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "coolable", "Fridge"),
}
"""Task type → the state that its object must be in, the ability needed for it, and the receptacle that treats it."""

PARAPHRASES = {
    "pick_and_place_simple": ("Move one {obj} to the {recep}.", "Get one {obj} and set it down at the {recep}."),
    "look_at_obj_in_light": ("Hold one {obj} beside a lit {lamp}.", "Turn on the {lamp} while carrying one {obj}."),
    "pick_clean_then_place_in_recep": (
        "Wash one {obj} and leave it at the {recep}.",
        "Bring one rinsed {obj} to the {recep}.",
    ),
    "pick_heat_then_place_in_recep": (
        "Warm up one {obj} and leave it at the {recep}.",
        "Bring one heated {obj} to the {recep}.",
    ),
    "pick_cool_then_place_in_recep": (
        "Chill one {obj} and leave it at the {recep}.",
        "Bring one cold {obj} to the {recep}.",
    ),
    "pick_two_obj_and_place": (
        "Move two of the {obj} kind to one {recep}.",
        "Bring one {obj} to the {recep}, then another.",
    ),
}
"""The tasks as a person might put them."""

WORD_BREAK = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def generate_game(seed: int, task_type: str | None = None) -> GameFiles:
    """Return a game that can be won in 3 to 14 commands and is not won at the start.

    A seed gives the same game in every process.

    Args:
        seed: a non-negative integer.
        task_type: one of `game.TYPES`; None draws a type, with the probabilities of the official sets.

    Raises:
        ValueError: there is no such task type.
    """
    if task_type is not None and task_type not in TYPES:
        raise ValueError(f"task type {task_type!r} is none of {', '.join(TYPES)}")
    if task_type is None:
        task_type = str(np.random.default_rng(named_seed("alfworld-type", seed)).choice(TYPES, p=SHARES))
    drafts = (_draft(seed, task_type, attempt) for attempt in count())
    return next(draft for draft in drafts if draft and 3 <= len(plan(House(compile_game(*draft)))) <= 14)


def _draft(seed: int, task_type: str, attempt: int) -> GameFiles | None:
    """Draw a game, which may be won already. Return None if the drawn room lacks something that the task needs."""
    rng = np.random.default_rng(named_seed("alfworld-game", seed, task_type, attempt))
    shares = rooms.ROOMS_OF_TYPE[task_type]
    room = str(rng.choice(list(shares), p=list(shares.values())))
    scene = int(rng.choice(rooms.ROOMS[room].scenes))
    layout = layout_of(room, scene)
    goal = _draw_goal(rng, task_type, room, layout)
    household = _furnish(rng, room, layout, goal) if goal else None
    return _written(f"trial_G{seed:08}", task_type, scene, goal, household) if goal and household else None


# ---- the task ------------------------------------------------------------------------------------------------------


def _draw_goal(rng: np.random.Generator, task_type: str, room: str, layout: Layout) -> Goal | None:
    """Draw a goal that the room may satisfy. Return None if the room lacks something that the task needs."""
    state, ability, tool = PREPARED.get(task_type, ("", "", ""))
    kinds = [
        kind for kind in (*rooms.ROOMS[room].always.split(), *rooms.ROOMS[room].sometimes)
        if kind not in {*rooms.ON_THE_FLOOR, *rooms.STANDS} and (not ability or kind in rooms.ABLE[ability])
    ]  # fmt: skip
    if task_type == "look_at_obj_in_light":
        return Goal(str(rng.choice(kinds)), lamp="DeskLamp") if layout.of(rooms.STANDS["DeskLamp"]) else None
    two = task_type == "pick_two_obj_and_place"
    barred = {*rooms.NOT_A_GOAL, tool, *(rooms.NOT_FOR_TWO if two else ())}
    present = sorted({fixture.kind for fixture in layout.receptacles} - barred)
    targets: dict[str, list[str]] = {}
    for kind in kinds:
        targets[kind] = [holder for holder in present if kind in rooms.HOLDS.get(holder, ())]
    kind = str(rng.choice([kind for kind in kinds if targets[kind]]))
    return Goal(kind, str(rng.choice(targets[kind])), state, count=1 + two)


# ---- what is in it -------------------------------------------------------------------------------------------------


def _furnish(rng: np.random.Generator, room: str, layout: Layout, goal: Goal) -> Household | None:
    """Return the room with its things; None if no receptacle can hold the object of the goal."""
    household = Household(layout.receptacles, layout.spots, str(rng.choice(layout.free)))
    names = Names(rng)
    for kind in drawn_kinds(rng, rooms.ROOMS[room].fixtures):
        _stand(rng, household, names.of(kind), kind, layout)
    for fixture in layout.receptacles:
        if fixture.kind.endswith("Basin"):
            _stand(rng, household, fixture.name.rsplit("_bar_", 1)[0], fixture.kind.removesuffix("Basin"), layout)
    for kind, amount in _drawn_amounts(rng, room, goal).items():
        for _ in range(amount):
            if kind in rooms.STANDS or kind in rooms.ON_THE_FLOOR:
                _stand(rng, household, names.of(kind), kind, layout)
            elif not _put(rng, household, names.of(kind), kind, layout, goal) and kind == goal.kind:
                return None
    # In some rooms, a piece of cutlery lies in a vessel.
    holder, kinds = dict(household.inside), household.things
    pairs = [
        (inner, outer) for inner, outer in product(holder, holder)
        if holder[inner] == holder[outer] and kinds[inner] in rooms.CUTLERY and kinds[outer] in rooms.VESSELS
    ]  # fmt: skip
    if pairs and rng.random() < 0.3:
        household.nested.append(pairs[rng.integers(len(pairs))])
    return household


def _drawn_amounts(rng: np.random.Generator, room: str, goal: Goal) -> Mapping[str, int]:
    """Draw the number of things per kind, and at least as many as the goal needs."""
    chances = dict.fromkeys(rooms.ROOMS[room].always.split(), 1.0) | rooms.ROOMS[room].sometimes
    needed = {goal.kind: goal.count, goal.lamp: 1}
    amounts = {}
    for kind, chance in chances.items():
        amount = int(rng.choice(4, p=AMOUNTS)) + 1
        amounts[kind] = (1 if kind in rooms.SINGLE else amount) if rng.random() < chance else 0
        amounts[kind] = max(amounts[kind], needed.get(kind, 0))
    return amounts


def _stand(rng: np.random.Generator, household: Household, name: str, kind: str, layout: Layout) -> None:
    """Add a thing that cannot be put anywhere. It stands on its own, or on a receptacle where such things are found."""
    supports = layout.of(rooms.STANDS.get(kind, ()))
    household.things[name] = kind
    if supports:
        fixture = supports[rng.integers(len(supports))]
        household.inside.append((name, fixture.name))
    household.at.append((name, fixture.location if supports else str(rng.choice(layout.free))))


def _put(rng: np.random.Generator, household: Household, name: str, kind: str, layout: Layout, goal: Goal) -> bool:
    """Add a thing in or on a receptacle that can hold it. Return False if there is none."""
    present = dict.fromkeys(fixture.kind for fixture in layout.receptacles)
    holders = [holder for holder in present if kind in rooms.HOLDS.get(holder, ())]
    if kind == goal.kind and not goal.state and not goal.lamp:
        # Otherwise the object could lie at its target from the start, and the game would be won.
        holders = [holder for holder in holders if holder != goal.receptacle]
    if not holders:
        return False
    weights = np.array([rooms.LIKELY.get(holder, 1) for holder in holders], dtype=float)
    fixtures = layout.of([str(rng.choice(holders, p=weights / weights.sum()))])
    fixture = fixtures[rng.integers(len(fixtures))]
    household.things[name] = kind
    household.inside.append((name, fixture.name))
    household.at.append((name, fixture.location))
    if fixture.kind == "Fridge" and kind in rooms.ABLE["coolable"] and rng.random() < 0.07:
        household.cool.append(name)
    beside = [other for other in layout.of(holders) if other.location == fixture.location and other != fixture]
    if beside and rng.random() < 0.2:  # the official files have things in two receptacles at once, too
        household.inside.append((name, beside[0].name))
    return True


# ---- its files -----------------------------------------------------------------------------------------------------


def _written(trial: str, task_type: str, scene: int, goal: Goal, household: Household) -> GameFiles:
    target = goal.lamp or goal.receptacle
    kinds = {"obj": goal.kind, "recep": goal.receptacle, "lamp": goal.lamp}
    words = {name: WORD_BREAK.sub(" ", kind).lower() for name, kind in kinds.items()}
    trajectory = {
        "pddl_params": {
            "mrecep_target": "", "object_sliced": False, "object_target": goal.kind,
            "parent_target": goal.receptacle, "toggle_target": goal.lamp,
        },
        "scene": {"floor_plan": f"FloorPlan{scene}", "scene_num": scene},
        "task_id": trial,
        "task_type": task_type,
        "turk_annotations": {"anns": [{"task_desc": text.format(**words)} for text in PARAPHRASES[task_type]]},
    }  # fmt: skip
    game_id = f"{task_type}-{goal.kind}-None-{target}-{scene}/{trial}"
    return game_id, problem_text(trial, household, goal), trajectory
