"""Return-conditioned imitation: every step is told, in the place of a reflection, the return that is to come.

Source: Emmons et al. 2022, "RvS: What is Essential for Offline RL via Supervised Learning?", conditioning on reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from reflectrl.config import Recipe
from reflectrl.episodes import without_reflections
from reflectrl.offline.config import offline_settings
from reflectrl.players.base import LiveEpisode
from reflectrl.types import Episode, Turn


def target_return(value: float) -> str:
    """What a policy is told in the place of a reflection: the return that is to come."""
    return f"{round(value, 6):+.1f} to come."  # sums of the same rewards may differ in their last digits


def with_target_returns(episodes: Iterable[Episode], gamma: float = 1.0) -> Iterator[Episode]:
    """The episodes with every step told what the episode earned from there on.

    A policy that imitates such episodes can be asked for a return.
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
    """Speaks in the reflector's place: the return that is still to come if the whole episode is to earn `target`.

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
    """The speaker of arms that are asked for a return: `offline.target_return`."""
    return TargetReturnPlayer(offline_settings(recipe).target_return)
