"""What is done to logged episodes before they are learned from: select, strip of reflections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from reflectrl.types import Episode, Step


def successes(episodes: Iterable[Episode]) -> list[Episode]:
    """Those that won: what filtered imitation and expert iteration learn from."""
    return [episode for episode in episodes if episode.success]


def without_reflections(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """The episodes as a policy sees them that plays without a reflector."""
    for episode in episodes:
        yield replace(episode, steps=tuple(_acting(step) for step in episode.steps))


def with_reflections(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Those of the episodes in which every step was reflected on."""
    return (episode for episode in episodes if all(step.reflection is not None for step in episode.steps))


def _acting(step: Step) -> Step:
    return replace(step, turns=tuple(turn for turn in step.turns if turn.choice is not None))
