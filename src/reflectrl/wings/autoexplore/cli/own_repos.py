"""`run autoexplore --repos DIR ...`: make a benchmark from the user's repositories before the run, in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from reflectrl.cli.run import RunOption
from reflectrl.core.config import Recipe
from reflectrl.core.types import UserError

LIBRARY = "library"
"""Folder of the library in the run folder."""


@dataclass(frozen=True)
class OwnRepositories(RunOption):
    """Option `--repos` of `reflectrl run`."""

    repos: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR ...")] = ()
    """AutoExplore: write questions about these repositories, then train on them."""

    def changed(self, recipe: Recipe, folder: Path) -> Recipe:
        """Return the recipe with the library of these repositories."""
        if not self.repos:
            return recipe
        if recipe.env.get("name") != "autoexplore":
            raise UserError(f"--repos is for AutoExplore; recipe {recipe.name} is about {recipe.env.get('name')}")
        return replace(recipe, env={**recipe.env, "library": str(folder / LIBRARY)})

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Make the library of these repositories."""
        if self.repos:
            own_library(self.repos, folder)


def own_library(repos: Sequence[Path], run: Path) -> Path:
    """Return the library of these repositories in a run folder; make it if it does not exist.

    With too few repositories to split among training, validation and test, the questions are split instead.

    Raises:
        UserError: a folder is missing or holds nothing to ask about, or the library was made of other repositories.
    """
    from reflectrl.wings.autoexplore.cli.data import AutoExploreData
    from reflectrl.wings.autoexplore.library import QUESTIONS, open_library
    from reflectrl.wings.autoexplore.making.make import FEWEST

    library = run / LIBRARY
    if not (library / QUESTIONS).is_dir():
        by: Literal["task", "repository"] = "task" if len(repos) < FEWEST else "repository"
        AutoExploreData("autoexplore", from_=(tuple(repos),), store=str(library), split_by=by)(())
    paths = {Path(entry.path) for entry in open_library(str(library)).repos.values()}
    for repo in repos:
        if repo.expanduser().resolve() not in paths:
            raise UserError(f"{library} was made without {repo}; name the same repositories, or another --folder")
    return library
