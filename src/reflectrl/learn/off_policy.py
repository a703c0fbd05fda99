"""Off-policy evaluation: what a policy would earn, estimated from episodes that another policy played.

The players of a log choose among listed actions, so the probability of every choice is known exactly. Three estimates
follow from it, the last with the least variance where the critic is good:

- Per-decision importance weighting (Precup, Sutton and Singh 2000, "Eligibility Traces for Off-Policy Policy
  Evaluation"): a reward counts with the ratio of the two policies' probabilities of all choices up to it. Unbiased.
- The same, self-normalised: ratios are divided by their mean at each step. Slightly biased, with less variance.
- Doubly robust (Jiang and Li 2016, "Doubly Robust Off-policy Value Evaluation for Reinforcement Learning", in the form
  of Thomas and Brunskill 2016): a critic's value, plus the weighted errors of that critic. Unbiased for any critic,
  since the critic of an episode is fitted to the other folds of the log.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reflectrl.core.types import UserError, named_seed

Array = NDArray[np.float64]

FOLDS = 5
"""Number of parts of a log. The critic of each is fitted to the others."""
PRIOR = 0.5
"""Weight of the mean return, in transitions, in the value of an action of a state."""
RESAMPLES = 1000
"""Number of bootstrap resamples of the self-normalised estimate."""


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
        chosen = np.array([probs[action] for probs, action in zip(self.evaluated, self.actions, strict=True)])
        return np.cumprod(chosen / np.asarray(self.logged))


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
    ratios = [episode.ratios() for episode in episodes]
    last = np.array([ratio[-1] for ratio in ratios])
    effective = float(last.sum() ** 2 / max((last**2).sum(), 1e-300))
    weighted = np.array([ratio @ np.asarray(one.rewards) for ratio, one in zip(ratios, episodes, strict=True)])
    robust = _doubly_robust(episodes, ratios, seed)
    return [
        Estimate("doubly robust", *_mean_and_interval(robust, confidence), effective),
        Estimate("self-normalised", *_self_normalised(episodes, ratios, confidence, seed), effective),
        Estimate("importance weighting", *_mean_and_interval(weighted, confidence), effective),
    ]


def _mean_and_interval(values: Array, confidence: float) -> tuple[float, float, float]:
    """Return the mean with Student's t interval over episodes."""
    from reflectrl.core.statistics import mean_interval

    low, high = mean_interval(values.tolist(), confidence) or (np.nan, np.nan)
    return float(values.mean()), low, high


def _self_normalised(
    episodes: Sequence[LoggedEpisode], ratios: Sequence[Array], confidence: float, seed: int
) -> tuple[float, float, float]:
    """Return the self-normalised estimate with a bootstrap interval over episodes."""
    longest = max(map(len, ratios))
    weights_ET, rewards_ET = np.zeros((len(episodes), longest)), np.zeros((len(episodes), longest))
    for row, (ratio, episode) in enumerate(zip(ratios, episodes, strict=True)):
        weights_ET[row] = np.pad(ratio, (0, longest - len(ratio)), mode="edge")  # an ended episode keeps its weight
        rewards_ET[row, : len(ratio)] = episode.rewards

    def value(rows: NDArray[np.int64] | slice) -> float:
        totals_T = weights_ET[rows].sum(0)
        earned_T = (weights_ET[rows] * rewards_ET[rows]).sum(0)
        return float((earned_T / np.maximum(totals_T, 1e-300)).sum())

    rng = np.random.default_rng(named_seed(seed, "bootstrap"))
    drawn = [value(rng.integers(len(episodes), size=len(episodes))) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return value(slice(None)), float(low), float(high)


def _doubly_robust(episodes: Sequence[LoggedEpisode], ratios: Sequence[Array], seed: int) -> Array:
    """Return the doubly robust value of each episode, (E,)."""
    fold = np.random.default_rng(named_seed(seed, "folds")).permutation(len(episodes)) % FOLDS
    values = np.zeros(len(episodes))
    for number in range(FOLDS):
        critic = TabularCritic([one for one, part in zip(episodes, fold, strict=True) if part != number])
        for row in np.flatnonzero(fold == number).tolist():
            episode = episodes[row]
            state_values = [critic.value(s, p) for s, p in zip(episode.states, episode.evaluated, strict=True)]
            chosen = np.array([critic.q(s, a) for s, a in zip(episode.states, episode.actions, strict=True)])
            following = np.array([*state_values[1:], 0.0])
            errors = np.asarray(episode.rewards) + following - chosen
            values[row] = state_values[0] + ratios[row] @ errors
    return values


class TabularCritic:
    """Action values of the evaluated policy, fitted to logged transitions: the exact solution of fitted Q evaluation.

    Every action of every state has a value of its own, which starts at the log's mean return with the weight `PRIOR`.
    """

    def __init__(self, episodes: Sequence[LoggedEpisode]) -> None:
        from scipy.sparse import csr_matrix, diags
        from scipy.sparse.linalg import spsolve

        self.default = float(np.mean([sum(episode.rewards) for episode in episodes]))
        keys = ((s, a) for one in episodes for s, a in zip(one.states, one.actions, strict=True))
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
        place = self._places.get((state, action))
        return self.default if place is None else float(self._q[place])

    def value(self, state: str, probabilities: Array) -> float:
        """Return the value of a state under a policy's probabilities."""
        return sum(float(p) * self.q(state, action) for action, p in enumerate(probabilities))
