"""What reward alone could teach in an environment, judged from a sample of random play."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reflectrl.envs.base import TextEnv
from reflectrl.players import RandomPlayer
from reflectrl.rollout import Job, rollout
from reflectrl.types import Episode, Task, named_seed

EPISODES = 60
"""Fewest episodes of a sample of random play; tasks are played again where there are fewer of them."""


@dataclass(frozen=True)
class Signal:
    """What was seen in some episodes of random play.

    Attributes:
        episodes, steps: how many there were.
        won: how many episodes ended in success.
        lowest, highest: return of an episode, in environment units.
        fewest, most: legal actions of a state.
        longest: characters of the longest observation.
        length: steps of the longest episode.
    """

    episodes: int
    steps: int
    won: int
    lowest: float
    highest: float
    fewest: int
    most: int
    longest: int
    length: int

    @property
    def problem(self) -> str | None:
        """Why reward alone could teach nothing, as far as the sample shows, or None."""
        if self.most < 2:
            return "there was never more than one legal action, so there is nothing to choose"
        if self.lowest == self.highest:
            return f"all {self.episodes} episodes of random play earned {self.lowest:g}, so no action looks better"
        return None


def signal_of(episodes: Sequence[Episode]) -> Signal:
    """What was seen in these episodes, of which there is at least one."""
    steps = [step for episode in episodes for step in episode.steps]
    returns = [round(episode.total_reward, 9) for episode in episodes]
    counts = [len(step.observation.actions) for step in steps]
    return Signal(
        episodes=len(episodes),
        steps=len(steps),
        won=sum(episode.success for episode in episodes),
        lowest=min(returns),
        highest=max(returns),
        fewest=min(counts, default=0),
        most=max(counts, default=0),
        longest=max((len(step.observation.text) for step in steps), default=0),
        length=max(len(episode.steps) for episode in episodes),
    )


def random_play(
    tasks: Sequence[Task], make_env: Callable[[], TextEnv], seed: int, batch: int, steps: int
) -> Iterator[list[Episode]]:
    """Play tasks at random in their order, and again where they are few, until so many steps are taken.

    Args:
        seed: of all choices; the same seed gives the same episodes.
        batch: episodes at the same time.

    Yields:
        The episodes of a batch of tasks.
    """
    planned = [(task, k) for k in range(math.ceil(EPISODES / len(tasks))) for task in tasks]
    taken = 0
    for start in range(0, len(planned), batch):
        jobs = [Job(task, named_seed(seed, "random", task.id, k)) for task, k in planned[start : start + batch]]
        order = {job.seed: i for i, job in enumerate(jobs)}
        played = sorted(rollout(jobs, make_env, RandomPlayer(), None, batch), key=lambda one: order[one.seed])
        yield played
        taken += sum(len(episode.steps) for episode in played)
        if taken >= steps:
            return
