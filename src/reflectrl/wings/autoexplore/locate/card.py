"""The card of an agent that answers questions, and where the agent to be used lies. Quick to import."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from reflectrl.pipeline import card as cards
from reflectrl.pipeline.artifacts import CARD
from reflectrl.types import UserError

VARIABLE = "REFLECTRL_AGENT"
"""Environment variable that names the folder of the agent to be used."""
SHIPPED = Path(str(files("reflectrl.wings.autoexplore.locate"))) / "default"
"""Where the default agent lies, if one ships."""


@dataclass(frozen=True)
class WalkSettings:
    """Arguments of `AutoExploreEnv` that decide what a walk looks like."""

    actions: Literal["paper", "extended"] = "extended"
    hits: int = 8
    page: int = 0
    horizon: int = 15


@dataclass(frozen=True)
class Card(cards.Card):
    """The card of an agent that was trained with autoexplore."""

    env: WalkSettings = field(default_factory=WalkSettings)  # type: ignore[assignment]


def read_card(folder: Path) -> Card:
    """Read `agent.json`.

    Raises:
        UserError: the folder holds no agent, one that was trained in another environment, or its card is damaged.
    """
    data: Any = {}
    with suppress(OSError, ValueError):  # what else is wrong with it is said where it is read
        data = json.loads((folder / CARD).read_text(encoding="utf-8"))
    env = data.get("env") if isinstance(data, Mapping) else None
    if isinstance(env, Mapping) and data.get("environment") and set(env) != {one.name for one in fields(WalkSettings)}:
        raise UserError(f"{folder} is an agent for {data['environment']!r}; agents answer questions with autoexplore")
    return cards.read_card(folder, Card)


def agent_folder(named: str = "") -> Path | None:
    """Where the agent lies: the folder that is named, else that of $REFLECTRL_AGENT, else the one in the package.

    None where none is named and none ships.
    """
    chosen = named or os.environ.get(VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser()
    return SHIPPED if (SHIPPED / CARD).is_file() else None
