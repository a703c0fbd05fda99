"""A kitchen written by hand: six receptacles, two mugs, two apples, a lamp, and a game of each task type in it."""

import json
from pathlib import Path
from typing import Any

from reflectrl.wings.alfworld.game import TYPES

LOCATIONS = [f"loc_bar_{number}_bar_1_bar_2_bar_30" for number in range(7)]
RECEPTACLES = {
    "CounterTop_bar_1": "CounterTop",
    "Sink_bar_1_bar_SinkBasin": "SinkBasin",
    "Microwave_bar_1": "Microwave",
    "Fridge_bar_1": "Fridge",
    "Cabinet_bar_1": "Cabinet",
    "SideTable_bar_1": "SideTable",
}
THINGS = {
    "Mug_bar_1": ("Mug", "CounterTop_bar_1"),
    "Mug_bar_2": ("Mug", "Cabinet_bar_1"),
    "Apple_bar_1": ("Apple", "Fridge_bar_1"),
    "Apple_bar_2": ("Apple", "SideTable_bar_1"),
    "DeskLamp_bar_1": ("DeskLamp", "SideTable_bar_1"),
}
FITS = dict.fromkeys(RECEPTACLES.values(), ("Mug", "Apple"))
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable")
TASKS = {
    "pick_and_place_simple": ("Mug", "SideTable", ""),
    "look_at_obj_in_light": ("Mug", "DeskLamp", ""),
    "pick_clean_then_place_in_recep": ("Mug", "Cabinet", "(cleanable ?o) (isClean ?o)"),
    "pick_heat_then_place_in_recep": ("Apple", "CounterTop", "(heatable ?o) (isHot ?o)"),
    "pick_cool_then_place_in_recep": ("Apple", "SideTable", "(coolable ?o) (isCool ?o)"),
    "pick_two_obj_and_place": ("Mug", "SideTable", ""),
}
PLANS = dict(zip(TYPES, (4, 4, 7, 6, 6, 9), strict=True))
"""Task type → commands of the shortest plan."""


def kitchen(task_type: str, trial: int = 1) -> tuple[str, str, dict[str, Any]]:
    """A game's id, the text of `initial_state.pddl`, and the content of `traj_data.json`."""
    name = f"trial_T20190909_000000_{trial:06}"
    wanted, target, _ = TASKS[task_type]
    task = f"{task_type}-{wanted}-None-{target}-1"
    trajectory = {
        "task_id": name,
        "task_type": task_type,
        "turk_annotations": {"anns": [{"task_desc": f"Do something with the {wanted.lower()}. "}, {"task_desc": ""}]},
    }
    return f"{task}/{name}", _problem(name, task_type), trajectory


def write_kitchen(folder: Path, split: str, task_type: str, trial: int = 1) -> Path:
    """Put a game into a folder in the official layout; returns where its files lie."""
    game_id, problem, trajectory = kitchen(task_type, trial)
    home = folder / split / game_id
    home.mkdir(parents=True, exist_ok=True)
    (home / "initial_state.pddl").write_text(problem, encoding="utf-8")
    (home / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    return home


def _problem(name: str, task_type: str) -> str:
    kinds = sorted({kind for kind, _ in THINGS.values()})
    objects = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in kinds),
        *(f"{kind}Type - rtype" for kind in RECEPTACLES.values()),
        *(f"{thing} - object" for thing in THINGS),
        *(f"{receptacle} - receptacle" for receptacle in RECEPTACLES),
        *(f"{location} - location" for location in LOCATIONS),
    ]
    facts = "\n".join(f"({fact})" for fact in _facts())
    return (
        f"(define (problem plan_{name})\n(:domain alfred)\n(:objects\n{chr(10).join(objects)}\n)\n"
        f"(:init\n{facts}\n(= (total-cost) 0)\n)\n(:goal {_goal(task_type)})\n)\n"
    )


def _facts() -> list[str]:
    place = dict(zip(RECEPTACLES, LOCATIONS[1:], strict=True))
    facts = [f"atLocation agent1 {LOCATIONS[0]}"]
    for receptacle, kind in RECEPTACLES.items():
        facts += [f"receptacleType {receptacle} {kind}Type", f"receptacleAtLocation {receptacle} {place[receptacle]}"]
        facts += [f"canContain {kind}Type {fitting}Type" for fitting in FITS[kind]]
        facts += [f"openable {receptacle}"] if kind in ("Microwave", "Fridge", "Cabinet") else []
    for thing, (kind, receptacle) in THINGS.items():
        facts += [f"objectType {thing} {kind}Type", f"inReceptacle {thing} {receptacle}"]
        facts += [f"objectAtLocation {thing} {place[receptacle]}"]
        facts += [f"{able} {thing}" for able in (("toggleable",) if kind == "DeskLamp" else ABILITIES)]
    return facts


def _goal(task_type: str) -> str:
    wanted, target, treated = TASKS[task_type]
    if task_type == "look_at_obj_in_light":
        return f"""(and
            (exists (?ot - object ?r - receptacle ?a - agent ?l - location)
                (and (objectType ?ot {target}Type) (toggleable ?ot) (isToggled ?ot)
                     (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
            (exists (?o - object ?a - agent) (and (objectType ?o {wanted}Type) (holds ?a ?o))))"""
    one = f"(objectType %s {wanted}Type) (receptacleType ?r {target}Type) (inReceptacle %s ?r)"
    if task_type != "pick_two_obj_and_place":
        return f"(and (exists (?r - receptacle) (exists (?o - object) (and {one % ('?o', '?o')} {treated}))))"
    other = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {one % ('?o2', '?o2')}))"
    return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {one % ('?o1', '?o1')} {other}))))"
