"""What the learner is paid beside the environment's rewards, where those are rare: milestones, and a bonus for novelty.

Both are off by default, and change what is learned from, never what is reported: success and returns are those of the
environment. Starts near a win, the third help, are a curriculum (`curriculum.ReverseCurriculum`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from reflectrl.config import RLConfig
from reflectrl.envs.base import TextEnv
from reflectrl.learn.curriculum import replayed
from reflectrl.types import Episode, Observation, UserError


def potentials(episode: Episode, milestones: Mapping[str, str]) -> list[float]:
    """The share of the milestones that an episode has reached before each of its T steps and after the last: T + 1.

    Args:
        milestones: event → stage, as an environment has them; a stage counts once, however many events tell of it.
    """
    total, reached = len(set(milestones.values())), set[str]()
    shares = [0.0]
    for step in episode.steps:
        reached |= {milestones[event] for event in step.events if event in milestones}
        shares.append(len(reached) / total)
    return shares


def shaping(potentials_T1: Sequence[float], gamma: float) -> list[float]:
    """F_t = gamma · Phi(s_{t+1}) - Phi(s_t): added to the rewards, it changes no policy's rank.

    Discounted and summed from step t to the last of T, it is gamma^(T-t) · Phi(s_T) - Phi(s_t): with Phi(s_T) = 0, a
    number that no action from t on has an influence on (Ng, Harada and Russell 1999, "Policy Invariance Under Reward
    Transformations"; Grzes 2017, "Reward Shaping in Episodic Reinforcement Learning", on the last state).

    Args:
        potentials_T1: [T + 1] potentials of the states of an episode.
        gamma: the discount factor of the learner.
    """
    return [gamma * after - before for before, after in pairwise(potentials_T1)]


class ObservationCounts:
    """How often the policy has reached each observation, over the whole training and all of its tasks.

    Two observations are equal if their `state` and their legal actions are: the history tells of the whole past, and no
    two would ever be equal with it. Counts are not kept by task, since where tasks are many none is played twice:
    everything in it would be new for ever, and the bonus would not fade. What the policy cannot tell apart is not new
    to it either.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @staticmethod
    def key(observation: Observation) -> str:
        """A short digest of what makes observations equal."""
        text = "\x1f".join((observation.state, *observation.actions))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def add(self, episodes: Iterable[Episode]) -> None:
        """Count what each of the policy's own actions led to."""
        for episode in episodes:
            self._counts.update(self.key(step.observation) for step in episode.steps[replayed(episode) + 1 :])

    def bonus(self, observation: Observation) -> float:
        """1 / sqrt(n) for what was reached n times, in (0, 1]; what was never counted is as good as reached once.

        Source: the exploration bonus of MBIE-EB (Strehl and Littman 2008), as Bellemare et al. 2016, "Unifying
        Count-Based Exploration and Intrinsic Motivation", use it.
        """
        return 1 / math.sqrt(max(1, self._counts[self.key(observation)]))

    def state(self) -> dict[str, int]:
        """The counts, as JSON values."""
        return dict(self._counts)

    def load(self, state: Mapping[str, int]) -> None:
        """Continue from a value of `state`."""
        self._counts = Counter(state)


class Pay:
    """What the learner is paid for the steps of an episode: the environment's rewards, and what exploration adds.

    Args:
        env: names the milestones.

    Raises:
        UserError: `config.milestone_coef` is set, and the environment has no milestones.
    """

    def __init__(self, config: RLConfig, env: TextEnv) -> None:
        self.config, self.milestones = config, dict(env.milestones)
        if config.milestone_coef and not self.milestones:
            raise UserError(
                f"rl.milestone_coef is {config.milestone_coef}, but {type(env).__name__} has no `milestones` "
                "(a dictionary from event to stage); leave the key at 0, or name some"
            )
        self.counts = ObservationCounts()
        # What compares episodes takes undiscounted sums, in which only undiscounted shaping cancels out.
        self.gamma = config.gamma if config.baseline in ("none", "mean", "critic") else 1.0

    def __call__(self, episode: Episode) -> Tensor:
        """[T] rewards to learn from, in environment units, of all steps of an episode."""
        rewards_T = torch.tensor([step.reward for step in episode.steps])
        if self.config.milestone_coef:
            rewards_T += torch.tensor(self.shaped(episode))
        if self.config.count_coef:
            rewards_T += torch.tensor(self.bonuses(episode))
        return rewards_T

    def shaped(self, episode: Episode) -> list[float]:
        """[T] rewards of potential-based shaping by milestones.

        The potential of an end is 0. Whether that of the horizon is one too, `config.milestone_at_horizon` says.
        """
        phi_T1 = [self.config.milestone_coef * share for share in potentials(episode, self.milestones)]
        if not (episode.truncated and self.config.milestone_at_horizon == "kept"):
            phi_T1[-1] = 0.0
        return shaping(phi_T1, self.gamma)

    def bonuses(self, episode: Episode) -> list[float]:
        """[T] bonuses: that of each observation for the step that led there; the last step leads to none."""
        own = replayed(episode)
        paid = [self.config.count_coef * self.counts.bonus(step.observation) for step in episode.steps[own + 1 :]]
        return [0.0] * own + paid + [0.0]

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """What is worth watching: the mean bonus of an episode, the mean share of the milestones that it reached."""
        noted = dict[str, float]()
        if self.config.count_coef:
            noted["count_bonus"] = sum(sum(self.bonuses(episode)) for episode in episodes) / len(episodes)
        if self.config.milestone_coef:
            ends = [potentials(episode, self.milestones)[-1] for episode in episodes]
            noted["milestones"] = sum(ends) / len(ends)
        return noted
