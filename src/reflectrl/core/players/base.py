"""Protocol of players: given some live episodes, a player takes a turn in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Observation, Reflection, Step, Task, Turn


@dataclass(eq=False)
class LiveEpisode:
    """Episode in progress, as players see it.

    The object lives exactly as long as the episode, so caches use it as their key.

    Attributes:
        observation: the current observation.
        rng: the episode's own random generator, for the players.
        turns: turns already taken on this observation.
        steps: the steps so far.
        truncated: True if a horizon or the environment itself cut the episode off.
    """

    env: TextEnv
    task: Task
    seed: int
    rng: np.random.Generator
    observation: Observation
    turns: list[Turn] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    truncated: bool = False

    @property
    def reflection(self) -> str | None:
        """The reflection on the current observation, or None."""
        return next((turn.text for turn in self.turns if isinstance(turn, Reflection)), None)


class Player(Protocol):
    """Anything that can choose actions, or write reflections before another player chooses.

    Turns are `Choice`s or `Reflection`s. A reflector whose attribute `carries` is true also reads its previous
    reflection, in `observation.carried` (see `carries`).
    """

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Take one turn per episode, in the same order. All randomness must come from the episodes' own `rng`."""
        ...


def carries(reflector: Player | None) -> bool:
    """Return whether a reflector reads its previous reflection. A rollout then passes it on (`Observation.after`)."""
    return bool(getattr(reflector, "carries", False))
