"""Preparing logged episodes for learning: select some, or remove their reflections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from reflectrl.core.types import Choice, Episode, Step


def successes(episodes: Iterable[Episode]) -> list[Episode]:
    """Return the won episodes, from which filtered imitation and expert iteration learn."""
    return [episode for episode in episodes if episode.success]


def without_reflections(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes without their reflections, for a policy that plays without a reflector."""
    for episode in episodes:
        yield replace(episode, steps=tuple(_acting(step) for step in episode.steps))


def with_reflections(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes in which every step has a reflection."""
    return (episode for episode in episodes if all(step.reflection is not None for step in episode.steps))


def with_carried(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Yield the episodes with the latest reflection in each observation, as a reflector that carries it would read it.

    An episode that such a reflector has played is left unchanged: its observations already hold the texts it read.
    """
    for episode in episodes:
        if any(step.observation.carried for step in episode.steps):
            yield episode
            continue
        steps, carried = list[Step](), ""
        for step in episode.steps:
            steps.append(replace(step, observation=replace(step.observation, carried=carried)))
            carried = carried if step.reflection is None else step.reflection
        yield replace(episode, steps=tuple(steps))


def _acting(step: Step) -> Step:
    # The prompt that was read contains the reflection, so it is not the prompt of the step without it.
    turns = (replace(turn, prompt_ids=()) for turn in step.turns if isinstance(turn, Choice))
    return replace(step, observation=replace(step.observation, carried=""), turns=tuple(turns))
