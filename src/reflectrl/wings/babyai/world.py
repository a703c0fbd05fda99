"""Worlds of `minigrid`: the list of levels, and the start of an episode."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from typing import Any

import gymnasium as gym

from reflectrl.core.advice import install
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError


def level_id(level: str) -> str:
    """Return gymnasium's id for a level of BabyAI: "BabyAI-GoToLocal-v0" for "GoToLocal".

    Raises:
        UserError: there is no such level (the message names the nearest), or `minigrid` is not installed.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import minigrid  # noqa: F401  (registers the levels)
    except ImportError as error:
        raise UserError(f"environment babyai needs minigrid; {install('babyai')}") from error
    levels = {id.removeprefix("BabyAI-").rpartition("-")[0]: id for id in gym.registry if id.startswith("BabyAI-")}
    if level not in levels:
        raise UserError(f"babyai: unknown level {level!r}{suggestion(level, levels)}")
    return levels[level]


def reset(world: Any, seed: int) -> None:
    """Begin the episode of a seed, without the lines that `minigrid` prints about missions that it rejected."""
    with redirect_stdout(io.StringIO()):
        world.reset(seed=seed)
