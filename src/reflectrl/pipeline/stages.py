"""Running a recipe: plan the parts that are missing, make them (side by side if asked), collect, report."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.envs import make
from reflectrl.learn.checkpoint import write_text
from reflectrl.pipeline import metrics, show
from reflectrl.pipeline.arms import chosen
from reflectrl.pipeline.claim import alone, claim
from reflectrl.pipeline.layout import RunFolder, unusable
from reflectrl.pipeline.plan import MADE, missing, refuse_leaks, rounds
from reflectrl.pipeline.progress import Board
from reflectrl.pipeline.results import write_results
from reflectrl.pipeline.workers import Workers, silence
from reflectrl.plugins import suggestion
from reflectrl.report import write_report
from reflectrl.terminal import console
from reflectrl.types import UserError

LOG = logging.getLogger(__name__)
STATE = "state.json"
"""The file of a run that says which stages are complete: for people, since a run looks at what is there."""


def run(recipe: Recipe, folder: Path, until: str) -> None:
    """Make what is missing, stage by stage, through `until`."""
    chosen(recipe.arms)
    if recipe.sft.policy_from == "reflector" and recipe.model.lora_rank:  # adapters start from their common backbone
        raise UserError("sft.policy_from is 'reflector'; with model.lora_rank above 0 it must be 'base'")
    _check_env(recipe)
    silence()
    try:
        with alone(folder):
            claim(recipe, folder)
            _run_stages(recipe, RunFolder(folder), until)
    except OSError as error:
        raise unusable(folder, error) from error


def _run_stages(recipe: Recipe, place: RunFolder, until: str) -> None:
    screen = console(120)
    with Board(screen) as board, Workers(recipe, place, board) as workers:
        for stage in MADE:
            units = missing(recipe, place, stage)
            if units:
                _mark(recipe, place, MADE[: MADE.index(stage)], only=True)
                for side_by_side in rounds(recipe, units):
                    workers.make(side_by_side)
            if units or stage == MADE[-1]:  # in the end also where nothing was missing: a file may be damaged
                metrics.collect(place)
            if stage == "eval":
                write_results(recipe, place)
            _mark(recipe, place, (stage,))
            if stage == until:
                return
    page = write_report(place.path)
    _mark(recipe, place, ("report",))
    show.results(screen, place.path, chosen(recipe.arms))
    show.one_episode(screen, place, recipe)
    screen.print(f"\nreport: {page}", soft_wrap=True)


def _check_env(recipe: Recipe) -> None:
    """Refuse splits and stages that the environment does not have, and leaks, before anything is made."""
    env = make(recipe.env)
    for stage in recipe.eval.stages:
        if stage not in env.stages:
            raise UserError(f"eval.stages: unknown stage {stage!r}{suggestion(stage, env.stages)}")
    for split in recipe.eval.splits:
        if not env.tasks(split):
            raise UserError(f"eval.splits: the environment has no tasks in {split!r}")
    refuse_leaks(env)


def _mark(recipe: Recipe, place: RunFolder, stages: tuple[str, ...], only: bool = False) -> None:
    """Note in `state.json` that these stages are complete; with `only`, that no other is."""
    before = [] if only else _complete(recipe, place)
    write_text(place.path / STATE, json.dumps({"complete": [*dict.fromkeys([*before, *stages])]}))


def _complete(recipe: Recipe, place: RunFolder) -> list[str]:
    """The stages that were noted as complete; where the note is damaged, those of which nothing is missing."""
    path = place.path / STATE
    if not path.is_file():
        return []
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))["complete"]
        if set(noted) <= {*MADE, "report"}:
            return list(noted)
    except (ValueError, KeyError, TypeError):
        pass
    LOG.warning("reflectrl: %s is damaged; it is written anew from what the folder holds", path)
    return [stage for stage in MADE if not missing(recipe, place, stage)]
