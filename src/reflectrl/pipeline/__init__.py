"""A recipe's stages in order, each skipped when its output is complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.config import Recipe
from reflectrl.pipeline.arms import ARMS, Arm

if TYPE_CHECKING:  # players bring torch, which lists and help do without
    from reflectrl.players.base import Player

STAGES = ("teach", "sft", "rl", "eval", "report")

__all__ = ["ARMS", "STAGES", "Arm", "load_players", "run"]


def run(recipe: Recipe, folder: Path, until: str = "report") -> None:
    """Execute a recipe in a run folder through the stage `until`; what is complete there is kept.

    Raises:
        UserError: the folder belongs to another recipe, or something the user gave is wrong.
    """
    if recipe.text.task == "none":  # torch is slow to import; lists and help do without
        from reflectrl.pipeline.stages import run as run_stages
    else:
        from reflectrl.wings.text.pipeline.stages import run as run_stages
    run_stages(recipe, folder, until)


def load_players(folder: Path, arm: str, seed: int, trust: bool = False) -> tuple[Player, Player | None]:
    """The acting player and the reflector (or None) of an arm that was trained in a run folder.

    `trust` lets its models bring code of their own, if the run's recipe wants that.
    """
    from reflectrl.pipeline.players import load_players as load

    return load(folder, arm, seed, trust)
