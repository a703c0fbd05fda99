"""Running a recipe: a graph of artifacts, each of which is kept in the run folder once it is complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.config import Recipe
from reflectrl.pipeline.arms import Arm, all_arms
from reflectrl.pipeline.artifacts import STAGES, Artifact

if TYPE_CHECKING:  # players bring torch, which lists and help do without
    from reflectrl.players.base import Player

__all__ = ["STAGES", "Arm", "Artifact", "all_arms", "graph_lines", "load_players", "precision_line", "run"]


def run(recipe: Recipe, folder: Path, until: str = "report") -> None:
    """Execute a recipe in a run folder, up to and including the stage `until`; complete artifacts are kept.

    Raises:
        UserError: the folder belongs to another recipe, or some input of the user's is wrong.
    """
    from reflectrl.pipeline.runner import run_recipe  # torch is slow to import; lists and help do without

    run_recipe(recipe, folder, until)


def graph_lines(recipe: Recipe, folder: Path) -> list[str]:
    """One line per artifact of a recipe: what it is made from, and whether it is there already. Imports no torch."""
    from reflectrl.pipeline.artifacts import State, listing
    from reflectrl.pipeline.graph import pipeline_of

    return listing(pipeline_of(recipe).graph(recipe), State.read(folder), recipe.plain())


def precision_line(recipe: Recipe, folder: Path) -> str:
    """One line about "auto" precision in a run; "" where it has no meaning. Imports no torch."""
    from reflectrl.pipeline.artifacts import State
    from reflectrl.pipeline.graph import pipeline_of
    from reflectrl.pipeline.precision import note

    return note(recipe, pipeline_of(recipe).graph(recipe), State.read(folder))


def load_players(folder: Path, arm: str, seed: int, trust: bool = False) -> tuple[Player, Player | None]:
    """Load the acting player and the reflector (or None) of an arm that was trained in a run folder.

    `trust` allows its models to run code of their own, if the run's recipe asks for that.
    """
    from reflectrl.pipeline.players import load_players as load

    return load(folder, arm, seed, trust)
