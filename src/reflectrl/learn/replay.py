"""The replay buffer of successful episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from reflectrl.types import Episode


class ReplayBuffer:
    """The latest successful episodes, at most `slots` of them; the oldest makes room for the newest.

    The buffer's whole state is `episodes`: `ReplayBuffer(slots, buffer.episodes)` is an equal buffer, and writing
    those episodes with the episode log is all that resuming needs.

    Args:
        slots: greatest number of episodes kept; 0 keeps none.
        episodes: what to begin with (failures are left out here too).
    """

    def __init__(self, slots: int, episodes: Iterable[Episode] = ()) -> None:
        self._kept: deque[Episode] = deque(maxlen=slots)
        self.add(episodes)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What is kept, oldest first."""
        return tuple(self._kept)

    def add(self, episodes: Iterable[Episode]) -> None:
        """Keep those of the episodes that succeeded."""
        self._kept.extend(episode for episode in episodes if episode.success)

    def sample(self, count: int, rng: np.random.Generator) -> list[Episode]:
        """`count` different episodes drawn uniformly, or all of them (shuffled) when fewer are kept."""
        kept = self.episodes
        return [kept[i] for i in rng.choice(len(kept), min(count, len(kept)), replace=False)] if kept else []

    def clear(self) -> None:
        """Forget everything, as is done when the curriculum moves on."""
        self._kept.clear()
