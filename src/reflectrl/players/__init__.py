"""Anything that can act: policy, reflector, expert, oracle, baseline, analyst, random, scripted.

Players are imported when they are first asked for, since those with a model bring torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reflectrl.players.base import LiveEpisode, Player
    from reflectrl.players.policy import Policy, Reflector
    from reflectrl.players.simple import (
        AnalystPlayer,
        BaselinePlayer,
        ExpertPlayer,
        OraclePlayer,
        RandomPlayer,
        ScriptedPlayer,
    )

__all__ = [
    "AnalystPlayer", "BaselinePlayer", "ExpertPlayer", "LiveEpisode", "OraclePlayer", "Player", "Policy",
    "RandomPlayer", "Reflector", "ScriptedPlayer",
]  # fmt: skip

_HOMES = {"Player": "base", "LiveEpisode": "base", "Policy": "policy", "Reflector": "policy"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'simple')}"), name)
