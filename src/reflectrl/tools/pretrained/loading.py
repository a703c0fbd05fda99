"""`run --load RUN`: start from the trained players of another run, or of an exported agent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.cli.run import RunOption
from reflectrl.core.config import Recipe, read_recipe
from reflectrl.core.types import UserError
from reflectrl.runs.arms import select_arms
from reflectrl.runs.state import CARD, POLICY, REFLECTOR


@dataclass(frozen=True)
class LoadPlayers(RunOption):
    """The options `--load` and `--load-arm` of `reflectrl run`."""

    load: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Start from the trained players of this run folder, or of this exported agent. All seeds start from the same
    players, which were trained with the run's first seed."""
    load_arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = ""
    """Arm of that run whose players are loaded; the last trained arm if not given."""

    def changed(self, recipe: Recipe, folder: Path) -> Recipe:
        """Return the recipe with the loaded players as the initial models of their roles."""
        if self.load is None:
            if self.load_arm:
                raise UserError("--load-arm needs --load RUN: it names an arm of that run")
            return recipe
        policy, reflector = players_in(self.load, self.load_arm)
        model = replace(recipe.model, policy=str(policy.resolve()))
        model = replace(model, reflector=str(reflector.resolve())) if reflector else model
        return replace(recipe, model=model, sft=replace(recipe.sft, policy_from="base"))

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Copy the learning curve of the loaded policy, with which the report of the run begins."""
        if self.load is None or (self.load / CARD).is_file():  # an exported agent has no metrics
            return
        from reflectrl.runs.report.ancestors import copy_ancestors  # brings matplotlib
        from reflectrl.runs.report.data import read_run

        begun = folder / "recipe.toml"
        if begun.is_file() and read_recipe(begun).model.policy != recipe.model.policy:
            return  # the folder holds another run, which is about to be refused
        arm, seed, _, _ = trained_arm(self.load, self.load_arm)
        copy_ancestors(read_run(self.load), arm, seed, recipe.model.policy, folder)


def players_in(folder: Path, arm: str = "") -> tuple[Path, Path | None]:
    """Return the folders of the policy and the reflector of a run or an exported agent; None if there is no reflector.

    Args:
        arm: the arm whose players are wanted; "" for the last trained arm of the run.

    Raises:
        UserError: there is no such run or arm, or it is not trained.
    """
    if (folder / CARD).is_file():
        second = folder / REFLECTOR
        return folder / POLICY, second if second.is_dir() else None
    _, _, policy, reflector = trained_arm(folder, arm)
    return policy, reflector


def trained_arm(folder: Path, arm: str = "") -> tuple[str, int, Path, Path | None]:
    """Return the name and seed of a trained arm in a run folder, and the folders of its policy and reflector.

    Args:
        arm: the wanted arm; "" for the last trained one.

    Raises:
        UserError: there is no such run or arm, or it is not trained.
    """
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"--load: {folder} is neither a run folder nor an exported agent")
    from reflectrl.runs.players import is_base, planned_models  # brings torch

    recipe = read_recipe(folder / "recipe.toml")
    for name, row in select_arms([arm] if arm else recipe.arms[::-1], recipe).items():
        sources = planned_models(recipe, folder, recipe.seeds[0], name)[:2] if row.player == "policy" else ()
        trained = [None if source is None or is_base(source) else Path(source) for source in sources]
        if trained and trained[0] is not None:
            return name, recipe.seeds[0], trained[0], trained[1]
    raise UserError(f"--load: nothing is trained in {folder}" + (f" for the arm {arm!r}" if arm else ""))
