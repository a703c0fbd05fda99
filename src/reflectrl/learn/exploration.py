"""Extra rewards for the learner if the environment's rewards are rare: for milestones, for novelty, for entropy.

All are off by default. They change only what the learner is trained on. Reported success and returns are always the
environment's. A third remedy, starting near a win, is a curriculum (`curriculum.ReverseCurriculum`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Episode, Observation, Step, UserError
from reflectrl.learn.curriculum import replayed


def potentials(episode: Episode, milestones: Mapping[str, str]) -> list[float]:
    """Return the share of milestones reached before each of an episode's T steps, and after the last one: [T + 1].

    Args:
        milestones: event → the stage (as in `TextEnv`) or subgoal that it reaches. Each counts once, even if several
            events lead to it.
    """
    total, reached = len(set(milestones.values())), set[str]()
    shares = [0.0]
    for step in episode.steps:
        reached |= {milestones[event] for event in step.events if event in milestones}
        shares.append(len(reached) / total)
    return shares


def shaping(potentials_T1: Sequence[float], gamma: float) -> list[float]:
    """Compute rewards of potential-based shaping, F_t = gamma · Phi(s_{t+1}) - Phi(s_t).

    Their discounted sum from step t to the last step T is gamma^(T-t) · Phi(s_T) - Phi(s_t). If Phi(s_T) = 0, no action
    from t on can influence it, so the best policy stays the same (Ng, Harada and Russell 1999, "Policy Invariance Under
    Reward Transformations"; Grzes 2017, "Reward Shaping in Episodic Reinforcement Learning", on the last state).

    Args:
        potentials_T1: [T + 1] potentials of an episode's states.
        gamma: the learner's discount factor.
    """
    return [gamma * after - before for before, after in pairwise(potentials_T1)]


class ObservationCounts:
    """Counts of how often the policy has reached each observation, over the whole training and all tasks.

    Two observations count as equal if their `state` and their legal actions are equal. The history is left out: it
    contains the whole past, so no two observations would be equal. Counts are not kept per task: with many tasks, few
    are played twice, so everything would stay new and the bonus would never fade.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @staticmethod
    def key(observation: Observation) -> str:
        """Return a short digest of the parts that make two observations equal."""
        text = "\x1f".join((observation.state, *observation.actions))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def add(self, episodes: Iterable[Episode]) -> None:
        """Count the observations to which the policy's own actions have led."""
        for episode in episodes:
            self._counts.update(self.key(step.observation) for step in episode.steps[replayed(episode) + 1 :])

    def bonus(self, observation: Observation) -> float:
        """Return 1 / sqrt(n) for an observation that was reached n times; 1 if it was never reached.

        Source: the exploration bonus of MBIE-EB (Strehl and Littman 2008), as Bellemare et al. 2016, "Unifying
        Count-Based Exploration and Intrinsic Motivation", use it.
        """
        return 1 / math.sqrt(max(1, self._counts[self.key(observation)]))

    def state(self) -> dict[str, int]:
        """Return the counts, as JSON values."""
        return dict(self._counts)

    def load(self, state: Mapping[str, int]) -> None:
        """Continue from a value of `state`."""
        self._counts = Counter(state)


def entropy_of(step: Step) -> float:
    """Return the entropy (nats) of the policy's choice when it was made; 0 if no probabilities were recorded."""
    probabilities = step.choice.probs if step.choice is not None else None
    return -sum(p * math.log(p) for p in probabilities or () if p > 0)


class RewardShaping:
    """Learner's rewards for the steps of an episode: the environment's, plus exploration bonuses.

    Args:
        env: environment that names the milestones and subgoals. Shaping treats both alike.

    Raises:
        UserError: `config.milestone_coef` is set, but the environment has neither.
    """

    def __init__(self, config: RLConfig, env: TextEnv) -> None:
        self.config, self.milestones = config, {**env.milestones, **{event: event for event in env.subgoals}}
        if config.milestone_coef and not self.milestones:
            raise UserError(
                f"rl.milestone_coef is {config.milestone_coef}, but {type(env).__name__} has no `milestones` (a "
                "dictionary from event to stage) and no `subgoals` (names of events); leave the key at 0, or name some"
            )
        self.counts = ObservationCounts()
        # Estimators that compare episodes use undiscounted sums, in which only undiscounted shaping cancels out.
        self.gamma = config.gamma if config.baseline in ("none", "mean", "critic") else 1.0

    def count(self, episodes: Iterable[Episode]) -> None:
        """Count the observations of an update's episodes, by which later bonuses fade."""
        if self.config.count_coef:
            self.counts.add(episodes)

    def __call__(self, episode: Episode) -> Tensor:
        """Return the rewards [T] to learn from, one per step of an episode, in environment units."""
        rewards_T = torch.tensor([step.reward for step in episode.steps])
        if self.config.milestone_coef:
            rewards_T += torch.tensor(self.shaped(episode))
        if self.config.count_coef:
            rewards_T += torch.tensor(self.bonuses(episode))
        if self.config.entropy_in == "returns" and self.config.entropy_coef:
            rewards_T += self.config.entropy_coef * torch.tensor([entropy_of(step) for step in episode.steps])
        return rewards_T

    def shaped(self, episode: Episode) -> list[float]:
        """Return the rewards [T] of potential-based shaping by milestones.

        The potential of a terminal state is 0. `config.milestone_at_horizon` says whether it is also 0 at the horizon.
        With a critic it is kept there: the critic predicts shaped rewards, so its value of the last observation already
        lacks the potential.
        """
        phi_T1 = [self.config.milestone_coef * share for share in potentials(episode, self.milestones)]
        estimated = self.config.baseline == "critic" and episode.cut_off is not None
        if not (episode.truncated and (self.config.milestone_at_horizon == "kept" or estimated)):
            phi_T1[-1] = 0.0
        return shaping(phi_T1, self.gamma)

    def bonuses(self, episode: Episode) -> list[float]:
        """Return the bonus [T] of each step, given for the observation that it led to. The last step has none."""
        own = replayed(episode)
        later = [self.config.count_coef * self.counts.bonus(step.observation) for step in episode.steps[own + 1 :]]
        return ([0.0] * own + later + [0.0])[: len(episode.steps)]

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return metrics: the mean bonus per episode, and the mean share of milestones reached."""
        means = dict[str, float]()
        if self.config.count_coef:
            means["count_bonus"] = sum(sum(self.bonuses(episode)) for episode in episodes) / len(episodes)
        if self.config.milestone_coef:
            ends = [potentials(episode, self.milestones)[-1] for episode in episodes]
            means["milestones"] = sum(ends) / len(ends)
        return means
