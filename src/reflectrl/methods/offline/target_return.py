"""Return-conditioned imitation: in place of a reflection, the prompt of every step states the return to go.

Source: Emmons et al. 2022, "RvS: What is Essential for Offline RL via Supervised Learning?", conditioning on reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from reflectrl.core.config import Recipe
from reflectrl.core.episodes import without_reflections
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.types import Episode, Turn
from reflectrl.methods.offline.config import offline_settings


def target_return(value: float) -> str:
    """Return the text that states the return to go. It stands in the prompt in place of a reflection."""
    return f"{round(value, 6):+.1f} to come."  # floating-point sums of equal rewards may differ in their last digits


def with_target_returns(episodes: Iterable[Episode], gamma: float = 1.0) -> Iterator[Episode]:
    """Yield the episodes with the return to go stated at every step.

    A policy that imitates such episodes can be conditioned on a return.
    """
    for episode in without_reflections(episodes):
        rewards = [step.reward for step in reversed(episode.steps)]
        returns = list(accumulate(rewards, lambda later, reward: reward + gamma * later))[::-1]
        told = [
            replace(step, turns=(Turn("target_return", target_return(value)), *step.turns))
            for step, value in zip(episode.steps, returns, strict=True)
        ]
        yield replace(episode, steps=tuple(told))


class TargetReturnPlayer:
    """A player in the reflector's place. It states the return to go that is needed to reach `target` in the episode.

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


def target_return_player(recipe: Recipe) -> TargetReturnPlayer:
    """Return the player that conditions an arm on the return `offline.target_return`."""
    return TargetReturnPlayer(offline_settings(recipe).target_return)
