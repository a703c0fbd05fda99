"""Asks a return-conditioned policy for a return."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.players.base import LiveEpisode
from reflectrl.prompts import target_return
from reflectrl.types import Turn


class TargetReturnPlayer:
    """Speaks in the reflector's place: the return that is still to come if the whole episode is to earn `target`.

    Args:
        target: return of the whole episode, in environment units.
    """

    def __init__(self, target: float) -> None:
        self.target = target

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [
            Turn("target_return", target_return(self.target - sum(step.reward for step in episode.steps)))
            for episode in episodes
        ]
