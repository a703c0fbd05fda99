"""Return-conditioned imitation: the prompt of every step says how its episode went on, in place of a reflection.

In play, the prompt asks for a good episode. Three ways to say it:

- "return": the return to go, as a number. In play, the target minus what was earned so far. A target that suits a
  start near the goal is out of reach from one far away, so the policy is asked for returns that it never saw there.
- "share": where the return of the episode lies between the lowest and the highest return of the same task in the log.
  So returns are normalised per start. In play, the highest.
- "outcome": whether the episode succeeded, as text. In play, that it does.

Source: Emmons et al. 2022, "RvS: What is Essential for Offline RL via Supervised Learning?" (arXiv 2112.10751), whose
RvS-R is conditioned on reward. RvS-G is conditioned on a state to reach, which texts without coordinates do not have;
"outcome" is conditioned on the environment's own goal instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from reflectrl.core.types import Episode, Reflection, Turn

if TYPE_CHECKING:
    from reflectrl.core.players.base import LiveEpisode

Condition = Literal["return", "share", "outcome"]


def return_text(value: float) -> str:
    """Write the return to go."""
    return f"{round(value, 6):+.1f} to come."  # floating-point sums of equal rewards may differ in their last digits


def share_text(share: float) -> str:
    """Write a share between the lowest (0) and the highest (1) return."""
    return f"{share:.1f} of the best."


def outcome_text(success: bool) -> str:
    """Write whether an episode succeeds."""
    return "Goal reached." if success else "Goal missed."


def with_returns(episodes: Sequence[Episode], gamma: float) -> Iterator[list[str]]:
    """Yield, for each episode, the discounted return to go of every step."""
    for episode in episodes:
        rewards = [step.reward for step in reversed(episode.steps)]
        returns = list(accumulate(rewards, lambda later, reward: reward + gamma * later))[::-1]
        yield [return_text(value) for value in returns]


def with_shares(episodes: Sequence[Episode], gamma: float) -> Iterator[list[str]]:
    """Yield, for each episode, its share of the best discounted return of the same task, once for every step.

    Where all episodes of a task have the same return, it counts as the best.
    """
    from reflectrl.core.episodes import task_key

    returns = []
    for episode in episodes:
        returns.append(sum(step.reward * gamma**t for t, step in enumerate(episode.steps)))
    by_task = defaultdict[str, list[float]](list)
    for episode, value in zip(episodes, returns, strict=True):
        by_task[task_key(episode.task)].append(value)
    for episode, value in zip(episodes, returns, strict=True):
        lowest, highest = min(by_task[task_key(episode.task)]), max(by_task[task_key(episode.task)])
        share = (value - lowest) / (highest - lowest) if highest > lowest else 1.0
        yield [share_text(share)] * len(episode.steps)


def with_outcomes(episodes: Sequence[Episode], gamma: float) -> Iterator[list[str]]:
    """Yield, for each episode, whether it succeeded, once for every step."""
    for episode in episodes:
        yield [outcome_text(episode.success)] * len(episode.steps)


TEXTS: dict[Condition, Callable[[Sequence[Episode], float], Iterator[list[str]]]] = {
    "return": with_returns,
    "share": with_shares,
    "outcome": with_outcomes,
}


def conditioned(episodes: Iterable[Episode], condition: Condition, gamma: float = 1.0) -> Iterator[Episode]:
    """Yield the episodes with a condition stated at every step, for a policy to imitate."""
    from reflectrl.core.episodes import without_reflections

    plain = list(without_reflections(episodes))
    for episode, texts in zip(plain, TEXTS[condition](plain, gamma), strict=True):
        steps = [
            replace(step, turns=(Reflection("target_return", text), *step.turns))
            for step, text in zip(episode.steps, texts, strict=True)
        ]
        yield replace(episode, steps=tuple(steps))


class ConditionPlayer:
    """A player in the reflector's place. It asks for a good episode.

    Args:
        condition: how it asks.
        target: return of the whole episode, in environment units, for the condition "return".
        gamma: discount factor of returns. The demonstrations state discounted returns to go.
    """

    def __init__(self, condition: Condition, target: float, gamma: float = 1.0) -> None:
        self.condition, self.target, self.gamma = condition, target, gamma

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [Reflection("target_return", self._asked(episode)) for episode in episodes]

    def _asked(self, episode: LiveEpisode) -> str:
        if self.condition == "share":
            return share_text(1.0)
        if self.condition == "outcome":
            return outcome_text(success=True)
        remaining = self.target
        for step in episode.steps if self.gamma else ():  # with gamma 0, a return is the next reward alone
            remaining = (remaining - step.reward) / self.gamma
        return return_text(remaining)
