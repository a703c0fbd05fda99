"""What is done to logged episodes before they are learned from: select, strip of reflections, tell the return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate

from reflectrl.prompts import target_return
from reflectrl.types import Episode, Step, Turn


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


def with_target_returns(episodes: Iterable[Episode], gamma: float = 1.0) -> Iterator[Episode]:
    """Every step told, in the place of a reflection, what the episode earned from there on.

    A policy that imitates such episodes can be asked for a return (Emmons et al. 2022, "RvS: What is Essential for
    Offline RL via Supervised Learning?", conditioning on reward).
    """
    for episode in without_reflections(episodes):
        rewards = [step.reward for step in reversed(episode.steps)]
        returns = list(accumulate(rewards, lambda later, reward: reward + gamma * later))[::-1]
        told = zip(episode.steps, returns, strict=True)
        yield replace(
            episode,
            steps=tuple(
                replace(step, turns=(Turn("target_return", target_return(value)), *step.turns)) for step, value in told
            ),
        )


def _acting(step: Step) -> Step:
    return replace(step, turns=tuple(turn for turn in step.turns if turn.choice is not None))
