"""Off-policy evaluation: what a policy would earn, estimated from episodes that another policy played.

The players of a log choose among listed actions, so the probability of every choice is known exactly. Three estimates
follow from it, the last with the least variance where the critic is good:

- Per-decision importance weighting (Precup, Sutton and Singh 2000, "Eligibility Traces for Off-Policy Policy
  Evaluation"): a reward counts with the ratio of the two policies' probabilities of all choices up to it. Unbiased.
- The same, self-normalised: ratios are divided by their mean at each step. Slightly biased, with less variance.
- Doubly robust (Jiang and Li 2016, "Doubly Robust Off-policy Value Evaluation for Reinforcement Learning", with the
  self-normalised weights of Thomas and Brunskill 2016): a critic's value, plus the weighted errors of that critic. The
  critic of an episode is fitted to the other folds of the log.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import UserError, named_seed

Array = NDArray[np.float64]

FOLDS = 5
"""Number of parts of a log. The critic of each is fitted to the others."""
PRIOR = 0.5
"""Weight of the mean return, in transitions, in the value of an action of a state."""
RESAMPLES = 1000
"""Number of bootstrap resamples of the episodes."""


@dataclass(frozen=True)
class LoggedEpisode:
    """Episode of T steps.

    Attributes:
        states: key of each state. The critic takes states with the same key for the same state.
        actions: index of each action taken.
        logged: probability of each action under the player that took it.
        evaluated: probability of every legal action under the policy that is evaluated, for each step.
        rewards: reward of each step.
    """

    states: Sequence[str]
    actions: Sequence[int]
    logged: Sequence[float]
    evaluated: Sequence[Array]
    rewards: Sequence[float]

    def ratios(self) -> Array:
        """Return the ratio of the two policies' probabilities of all choices up to each step, (T,)."""
        action_probs = np.array([probs[action] for probs, action in zip(self.evaluated, self.actions, strict=True)])
        return np.cumprod(action_probs / np.asarray(self.logged))


@dataclass(frozen=True)
class Estimate:
    """Estimate of an expected return, with its interval.

    Attributes:
        effective: effective number of episodes, (sum of weights)^2 / (sum of squared weights).
    """

    method: str
    value: float
    low: float
    high: float
    effective: float


def estimates(episodes: Sequence[LoggedEpisode], confidence: float = 0.95, seed: int = 0) -> list[Estimate]:
    """Estimate the evaluated policy's expected return in three ways, doubly robust first.

    Raises:
        UserError: there are too few episodes, or a choice was made with an unknown or impossible probability.
    """
    if len(episodes) < 2 * FOLDS:
        raise UserError(f"an estimate needs at least {2 * FOLDS} logged episodes, not {len(episodes)}")
    if any(not 0 < p <= 1 for episode in episodes for p in episode.logged):
        raise UserError("an estimate needs the probability of every logged choice")
    longest = max(len(episode.states) for episode in episodes)
    # An episode that has ended keeps its weight, since the means at later steps are over all episodes.
    weights_ET = np.array(
        [np.pad(trajectory.ratios(), (0, longest - len(trajectory.states)), mode="edge") for trajectory in episodes]
    )
    rewards_ET = np.array(
        [np.pad(trajectory.rewards, (0, longest - len(trajectory.states))) for trajectory in episodes]
    )
    last_E, nothing_E = weights_ET[:, -1], np.zeros(len(episodes))
    effective = float(last_E.sum() ** 2 / max((last_E**2).sum(), 1e-300))
    values_E, errors_ET = _critic_errors(episodes, longest, seed)
    rng = np.random.default_rng(named_seed(seed, "bootstrap"))
    samples = [rng.integers(len(episodes), size=len(episodes)) for _ in range(RESAMPLES)]
    robust = _self_normalised(values_E, weights_ET, errors_ET, samples, confidence)
    normalised = _self_normalised(nothing_E, weights_ET, rewards_ET, samples, confidence)
    weighted_E = (weights_ET * rewards_ET).sum(1)
    low, high = mean_interval(weighted_E.tolist(), confidence) or (np.nan, np.nan)
    return [
        Estimate("doubly robust", *robust, effective),
        Estimate("self-normalised", *normalised, effective),
        Estimate("importance weighting", float(weighted_E.mean()), low, high, effective),
    ]


def _self_normalised(
    values_E: Array, weights_ET: Array, terms_ET: Array, samples: Sequence[NDArray[np.int64]], confidence: float
) -> tuple[float, float, float]:
    """Return the mean of the values plus the weighted means of the terms of each step, with a bootstrap interval.

    Args:
        samples: indices of the episodes of each resample.
    """

    def total(rows: NDArray[np.int64]) -> float:
        sums_T = (weights_ET[rows] * terms_ET[rows]).sum(0)
        return float(values_E[rows].mean() + (sums_T / np.maximum(weights_ET[rows].sum(0), 1e-300)).sum())

    low, high = np.quantile([total(rows) for rows in samples], [(1 - confidence) / 2, (1 + confidence) / 2])
    return total(np.arange(len(values_E))), float(low), float(high)


def _critic_errors(episodes: Sequence[LoggedEpisode], longest: int, seed: int) -> tuple[Array, Array]:
    """Return a critic's value of each first state, (E,), and its error at each step, (E, T), which is 0 after the end.

    The critic of an episode is fitted to the other folds.
    """
    fold_E = np.random.default_rng(named_seed(seed, "folds")).permutation(len(episodes)) % FOLDS
    values_E, errors_ET = np.zeros(len(episodes)), np.zeros((len(episodes), longest))
    for held_out in range(FOLDS):
        critic = TabularCritic([other for other, fold in zip(episodes, fold_E, strict=True) if fold != held_out])
        for row in np.flatnonzero(fold_E == held_out).tolist():
            episode = episodes[row]
            state_values = [critic.value(s, p) for s, p in zip(episode.states, episode.evaluated, strict=True)]
            action_values = [critic.q(s, a) for s, a in zip(episode.states, episode.actions, strict=True)]
            following = np.array([*state_values[1:], 0.0])
            values_E[row] = state_values[0]
            errors_ET[row, : len(action_values)] = np.asarray(episode.rewards) + following - np.array(action_values)
    return values_E, errors_ET


class TabularCritic:
    """Action values of the evaluated policy, fitted to logged transitions: the exact solution of fitted Q evaluation.

    Every action of every state has a value of its own, which starts at the log's mean return with the weight `PRIOR`.
    """

    def __init__(self, episodes: Sequence[LoggedEpisode]) -> None:
        from scipy.sparse import csr_matrix, diags
        from scipy.sparse.linalg import spsolve

        self.default = float(np.mean([sum(episode.rewards) for episode in episodes]))
        keys = ((s, a) for trajectory in episodes for s, a in zip(trajectory.states, trajectory.actions, strict=True))
        self._places: dict[tuple[str, int], int] = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        size = len(self._places)
        counts, targets = np.full(size, PRIOR), np.full(size, PRIOR * self.default)
        rows, columns, weights = list[int](), list[int](), list[float]()
        for episode in episodes:
            for t, (state, action, reward) in enumerate(
                zip(episode.states, episode.actions, episode.rewards, strict=True)
            ):
                row = self._places[state, action]
                counts[row] += 1
                targets[row] += reward
                if t + 1 == len(episode.states):
                    continue
                for following, probability in enumerate(episode.evaluated[t + 1]):
                    column = self._places.get((episode.states[t + 1], following))
                    if column is None:
                        targets[row] += probability * self.default
                    else:
                        rows.append(row)
                        columns.append(column)
                        weights.append(float(probability))
        successors = csr_matrix((weights, (rows, columns)), shape=(size, size))
        self._q = np.atleast_1d(spsolve((diags(counts) - successors).tocsc(), targets))

    def q(self, state: str, action: int) -> float:
        """Return the value of an action in a state."""
        row = self._places.get((state, action))
        return self.default if row is None else float(self._q[row])

    def value(self, state: str, probabilities: Array) -> float:
        """Return the value of a state under a policy's probabilities."""
        return sum(float(p) * self.q(state, action) for action, p in enumerate(probabilities))
