"""Players that need no model: expert, oracle, baseline, analyst, random, scripted.

Those with a language model are in `models.players`.
"""

from reflectrl.core.players.base import LiveEpisode, Player, carries
from reflectrl.core.players.simple import (
    AnalystPlayer,
    BaselinePlayer,
    ExpertPlayer,
    OraclePlayer,
    RandomPlayer,
    ScriptedPlayer,
)

__all__ = [
    "AnalystPlayer", "BaselinePlayer", "ExpertPlayer", "LiveEpisode", "OraclePlayer", "Player", "RandomPlayer",
    "ScriptedPlayer", "carries",
]  # fmt: skip
