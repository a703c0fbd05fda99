"""Execution of a recipe: a graph of artifacts. Each artifact is kept in the run folder once it is complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.config import Recipe
from reflectrl.core.plugins import names, suggestion
from reflectrl.core.types import UserError
from reflectrl.runs.arms import Arm, all_arms
from reflectrl.runs.artifact import STAGES, Artifact

if TYPE_CHECKING:  # importing players imports torch, which lists and help do not need
    from reflectrl.core.players.base import Player

__all__ = [
    "STAGES", "Arm", "Artifact", "all_arms", "graph_lines", "load_players", "precision_line", "require_known", "run",
]  # fmt: skip


def run(recipe: Recipe, folder: Path, until: str = "report") -> None:
    """Execute a recipe in a run folder, up to and including the stage `until`. Complete artifacts are kept.

    Raises:
        UserError: the folder belongs to another recipe, or some of the user's input is wrong.
    """
    from reflectrl.runs.runner import run_recipe  # torch is slow to import, and lists and help do not need it

    run_recipe(recipe, folder, until)


def graph_lines(recipe: Recipe, folder: Path) -> list[str]:
    """Return one line per artifact of a recipe: its inputs, and whether it exists already. Imports no torch."""
    from reflectrl.runs.graph import planned
    from reflectrl.runs.state import State, listing

    return listing(planned(recipe), State.read(folder), recipe.plain())


def require_known(recipe: Recipe, trusted: bool) -> None:
    """Refuse unknown names: of the engine, of the environment, and of arguments of its class.

    Nothing is made, and no data are read. Imports no torch.

    Args:
        trusted: True if code that the recipe names may be imported. Otherwise, checks that need this code are skipped.

    Raises:
        UserError: names the key, with the nearest known one.
    """
    from reflectrl.runs.graph import ENVIRONMENT, kind_of

    engine = recipe.engine
    if engine != "local" and ":" not in engine and engine not in names("engines"):
        raise UserError(f"unknown engine {engine!r}{suggestion(engine, ['local', *names('engines')])}")
    name = recipe.env.get("name")
    if name and kind_of(recipe) is ENVIRONMENT and (trusted or ":" not in str(name)):
        from reflectrl.core.envs import class_and_arguments  # gymnasium takes a moment to import

        class_and_arguments(recipe.env)


def precision_line(recipe: Recipe, folder: Path) -> str:
    """Return one line about "auto" precision in a run; "" if the run does not use it. Imports no torch."""
    from reflectrl.runs.graph import planned
    from reflectrl.runs.precision import note
    from reflectrl.runs.state import State

    return note(recipe, planned(recipe), State.read(folder))


def load_players(folder: Path, arm: str, seed: int, trust: bool = False) -> tuple[Player, Player | None]:
    """Load the acting player and the reflector (or None) of an arm that was trained in a run folder.

    `trust` allows its models to run code of their own, if the run's recipe asks for that.
    """
    from reflectrl.runs.players import load_players as load

    return load(folder, arm, seed, trust)
