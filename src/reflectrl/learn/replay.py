"""Replay buffer of successful episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from reflectrl.core.types import Episode


class ReplayBuffer:
    """Buffer of the latest successful episodes. New ones replace the oldest.

    Args:
        slots: largest number of episodes; 0 keeps none.
        episodes: initial episodes (failures are left out).
        priorities: priorities of the initial episodes; empty for the default.
    """

    def __init__(self, slots: int, episodes: Iterable[Episode] = (), priorities: Sequence[float] = ()) -> None:
        self._kept: deque[Episode] = deque(maxlen=slots)
        self._priorities: deque[float] = deque(maxlen=slots)
        self.add(episodes, priorities)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """The episodes in the buffer, oldest first."""
        return tuple(self._kept)

    @property
    def priorities(self) -> tuple[float, ...]:
        """The priority of each episode, above 0."""
        return tuple(self._priorities)

    def add(self, episodes: Iterable[Episode], priorities: Sequence[float] = ()) -> None:
        """Add the successful episodes. Without `priorities` they get the highest priority, to be drawn soon."""
        succeeded = [episode for episode in episodes if episode.success]
        self._priorities.extend(priorities or [max(self._priorities, default=1.0)] * len(succeeded))
        self._kept.extend(succeeded)

    def sample(self, count: int, rng: np.random.Generator) -> list[Episode]:
        """Draw `count` different episodes uniformly, or all of them (shuffled) if there are fewer."""
        episodes = self.episodes
        return [episodes[index] for index in self.draw(count, rng)]

    def draw(self, count: int, rng: np.random.Generator, by_priority: bool = False, repeats: bool = False) -> list[int]:
        """Draw the indices of `count` episodes, uniformly or in proportion to their priorities.

        Without `repeats` they are all different, and fewer than `count` if the buffer holds fewer.

        Source: Schaul et al. 2016, "Prioritized Experience Replay", with alpha = 1 and, as in self-imitation learning,
        without weights that undo the priorities.
        """
        if not self._kept:
            return []
        chances = np.array(self._priorities) / sum(self._priorities) if by_priority else None
        draws = count if repeats else min(count, len(self._kept))
        return rng.choice(len(self._kept), draws, replace=repeats, p=chances).tolist()

    def set_priorities(self, indices: Sequence[int], priorities: Sequence[float]) -> None:
        """Set the priorities (above 0) of the episodes at these indices."""
        for index, priority in zip(indices, priorities, strict=True):
            self._priorities[index] = priority

    def clear(self) -> None:
        """Remove all episodes. Called when the curriculum moves on."""
        self._kept.clear()
        self._priorities.clear()
