"""`run autoexplore --repos DIR ...`: a benchmark of one's own repositories, made before the run and kept beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from reflectrl.cli.run import RunOption
from reflectrl.config import Recipe
from reflectrl.types import UserError

LIBRARY = "library"
"""Folder of the library in the run folder."""


@dataclass(frozen=True)
class OwnRepositories(RunOption):
    """The option `--repos` of `reflectrl run`."""

    repos: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR ...")] = ()
    """AutoExplore: make questions about these repositories first, and train on those."""

    def changed(self, recipe: Recipe, folder: Path) -> Recipe:
        """The recipe, about the library of these repositories."""
        if not self.repos:
            return recipe
        if recipe.env.get("name") != "autoexplore":
            raise UserError(f"--repos is for AutoExplore; recipe {recipe.name} is about {recipe.env.get('name')}")
        return replace(recipe, env={**recipe.env, "library": str(folder / LIBRARY)})

    def prepare(self, recipe: Recipe, folder: Path) -> None:
        """Make that library."""
        if self.repos:
            own_library(self.repos, folder)


def own_library(repos: Sequence[Path], run: Path) -> Path:
    """The library of these repositories in a run folder; made if it is not there yet.

    Of fewer repositories than can be divided among training, validation and test, the questions are divided.

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
    known = {Path(entry.path) for entry in open_library(str(library)).repos.values()}
    for repo in repos:
        if repo.expanduser().resolve() not in known:
            raise UserError(f"{library} was made without {repo}; name the same repositories, or another --folder")
    return library
