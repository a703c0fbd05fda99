"""What a player is: anything that takes a turn for each of the live episodes it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from reflectrl.envs.base import TextEnv
from reflectrl.types import Observation, Step, Task, Turn


@dataclass(eq=False)
class LiveEpisode:
    """An episode that is being played, as players see it. It lives as long as the episode: a key for their caches.

    Attributes:
        observation: the current one.
        rng: the episode's own generator for the players' randomness.
        turns: turns already taken on this observation.
        steps: the steps so far.
        truncated: whether the horizon ended the episode.
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
        """What a reflector wrote on this observation, if anything."""
        return next((turn.text for turn in self.turns if turn.choice is None), None)


class Player(Protocol):
    """Anything that can act, or speak before another acts.

    A turn with a `choice` acts; a turn without one is a reflection.
    """

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """One turn per episode, in the same order. Randomness comes from each episode's `rng` only."""
        ...
