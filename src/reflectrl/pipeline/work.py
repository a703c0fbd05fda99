"""What the models of an arm compute while they are judged, for `timings.jsonl`."""

from __future__ import annotations

from typing import Any

from reflectrl.pipeline.players import Models
from reflectrl.players import Player


class Work:
    """What the models of an arm have computed since this was made, and what their players did not need to."""

    def __init__(self, models: Models | None) -> None:
        self.models = dict(zip(("policy", "reflector"), models or (), strict=False))
        self.before = {role: lm.counters.copy() for role, lm in self.models.items() if lm is not None}
        self.players: dict[str, list[Any]] = {"policy": [], "reflector": []}

    def watch(self, players: tuple[Player, Player | None]) -> tuple[Player, Player | None]:
        """Count what these players remember, too."""
        for role, player in zip(self.players, players, strict=True):
            self.players[role].append(player)
        return players

    def done(self) -> dict[str, Any]:
        """By role: tokens read, reused, written and guessed, prompts asked and remembered, and the most bytes kept."""
        return {role: self._of(role) for role in self.before}

    def _of(self, role: str) -> dict[str, int]:
        lm, players = self.models[role], self.players[role]
        assert lm is not None
        counters = lm.counters.since(self.before[role])
        asked, remembered = (sum(getattr(player, name) for player in players) for name in ("lookups", "hits"))
        return {
            "read": counters.encoded,
            "reused": counters.reused,
            "written": counters.decoded,
            "guessed": counters.drafted,
            "asked": asked,
            "remembered": remembered,
            "kept_bytes": max((player.pool.peak for player in players), default=0),
        }
