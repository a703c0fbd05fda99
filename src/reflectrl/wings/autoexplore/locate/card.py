"""Card of an agent that answers questions, and the folder of the agent to use. Fast to import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from reflectrl.core.json_lines import read_json
from reflectrl.core.types import UserError
from reflectrl.runs import card as cards
from reflectrl.runs.state import CARD

VARIABLE = "REFLECTRL_AGENT"
"""Environment variable that names the folder of the agent to use."""


@dataclass(frozen=True)
class WalkSettings:
    """Arguments of `AutoExploreEnv` that determine the prompts and actions of a walk."""

    actions: Literal["paper", "extended"] = "extended"
    hits: int = 8
    page: int = 0
    horizon: int = 15


@dataclass(frozen=True)
class Card(cards.Card):
    """Card of an agent that was trained with autoexplore."""

    env: WalkSettings = field(default_factory=WalkSettings)  # type: ignore[assignment]


def read_card(folder: Path) -> Card:
    """Read `agent.json`.

    Raises:
        UserError: the folder holds no agent, the agent was trained in another environment, or the card is damaged.
    """
    data: Any = {}
    with suppress(OSError, ValueError):  # `cards.read_card` below reports these errors
        data = read_json(folder / CARD)
    env = data.get("env") if isinstance(data, Mapping) else None
    if (
        isinstance(env, Mapping)
        and data.get("environment")
        and set(env) != {setting.name for setting in fields(WalkSettings)}
    ):
        raise UserError(f"{folder} is an agent for {data['environment']!r}; agents answer questions with autoexplore")
    return cards.read_card(folder, Card)


def agent_folder(named: str = "") -> Path | None:
    """Return the folder of the agent: `named`, else $REFLECTRL_AGENT; None if neither names one."""
    folder = named or os.environ.get(VARIABLE, "")
    return Path(folder).expanduser() if folder else None
