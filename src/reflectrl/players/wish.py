"""Asks a return-conditioned policy for a return."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.players.base import Seat
from reflectrl.prompts import wish
from reflectrl.types import Turn


class WishPlayer:
    """Speaks in the reflector's place: the return that is still to come if the whole episode is to earn `target`.

    Args:
        target: return of the whole episode, in environment units.
    """

    def __init__(self, target: float) -> None:
        self.target = target

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [Turn("wish", wish(self.target - sum(step.reward for step in seat.steps))) for seat in seats]
