"""One-hot features of an observation's text, for a learner without a language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from reflectrl.core.types import Observation

Slot = tuple[str, int, int]
"""Position of a word: the part of the text, the line in that part, and the word in that line."""


def words_of(observation: Observation) -> Iterator[tuple[Slot, str]]:
    """Yield the words of an observation with their slots, in history, state and listed actions.

    Lines are counted within a part, so that a history that grows does not move the lines of the state.
    """
    parts = {
        "history": observation.history.splitlines(),
        "state": observation.state.splitlines(),
        "actions": observation.actions,
    }
    for part, lines in parts.items():
        for line_index, line in enumerate(lines):
            for position, word in enumerate(line.split()):
                yield (part, line_index, position), word


class OneHot:
    """Features of a text: a column for each word that was seen in each slot, and one for unknown words in it.

    Args:
        observations: texts in which words are collected, usually of random play.

    Attributes:
        columns: the column of each slot and word; of a slot and None for unknown words.
        size: number of columns. The last one is for words in slots that were never seen.
        most_actions: largest number of listed actions in these texts.
    """

    def __init__(self, observations: Iterable[Observation]) -> None:
        self.columns: dict[tuple[Slot, str | None], int] = {}
        self.most_actions = 1
        for observation in observations:
            self.most_actions = max(self.most_actions, len(observation.actions))
            for slot, word in words_of(observation):
                self.columns.setdefault((slot, None), len(self.columns))
                self.columns.setdefault((slot, word), len(self.columns))
        self.size = len(self.columns) + 1

    def __call__(self, observation: Observation) -> np.ndarray:
        """Return the features of an observation."""
        features = np.zeros(self.size, np.float32)
        for slot, word in words_of(observation):
            unknown = self.columns.get((slot, None), self.size - 1)
            features[self.columns.get((slot, word), unknown)] = 1.0
        return features
