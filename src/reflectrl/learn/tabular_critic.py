"""Critic of logged states for off-policy evaluation: fitted Q evaluation with a value for every state and action.

Equal states share their values. The fit is a sparse linear system, which is solved exactly, so a critic can be fitted
again to every resample of a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from reflectrl.learn.off_policy import LoggedEpisode

Array = NDArray[np.float64]

PRIOR = 0.5
"""Weight of the mean return, in transitions, in the value of an action of a state."""


@dataclass(frozen=True)
class LogMatrices:
    """The N steps of a log of E episodes, over the P pairs of a state and an action that occur in it.

    Attributes:
        pairs: row of each pair, by the state's key and the action's index.
        taken_NP: 1 at the pair of each step.
        following_NP: the evaluated policy's probabilities of the pairs of the next state; 0 after the last step.
        policy_NP: the same for the step's own state.
        unlogged_N: the evaluated policy's probability of actions that were never logged in the step's state.
        unlogged_next_N: the same for the next state.
        episode_N: index of each step's episode.
        first_E: first step of each episode.
    """

    pairs: dict[tuple[str, int], int]
    taken_NP: Any
    following_NP: Any
    policy_NP: Any
    unlogged_N: Array
    unlogged_next_N: Array
    reward_N: Array
    episode_N: NDArray[np.int64]
    first_E: NDArray[np.int64]

    @classmethod
    def of(cls, episodes: Sequence[LoggedEpisode]) -> LogMatrices:
        """Build the matrices of a log."""
        from scipy.sparse import csr_matrix, diags

        pairs: dict[tuple[str, int], int] = {}
        for episode in episodes:
            for pair in zip(episode.states, episode.actions, strict=True):
                pairs.setdefault(pair, len(pairs))
        lengths = [len(episode.states) for episode in episodes]
        steps, size = sum(lengths), len(pairs)
        first_E = np.cumsum([0, *lengths[:-1]])
        rows, columns, probabilities, taken = list[int](), list[int](), list[float](), list[int]()
        unlogged_N = np.zeros(steps)
        step = 0
        for episode in episodes:
            for state, action, probs in zip(episode.states, episode.actions, episode.evaluated, strict=True):
                taken.append(pairs[state, action])
                for index, probability in enumerate(probs):
                    column = pairs.get((state, index))
                    if column is None:
                        unlogged_N[step] += probability
                    else:
                        rows.append(step)
                        columns.append(column)
                        probabilities.append(float(probability))
                step += 1
        policy_NP = csr_matrix((probabilities, (rows, columns)), shape=(steps, size))
        taken_NP = csr_matrix((np.ones(steps), (np.arange(steps), taken)), shape=(steps, size))
        goes_on_N = np.ones(steps)
        goes_on_N[first_E + np.array(lengths) - 1] = 0
        next_N = np.minimum(np.arange(steps) + 1, steps - 1)
        return cls(
            pairs,
            taken_NP,
            (diags(goes_on_N) @ policy_NP[next_N]).tocsr(),
            policy_NP,
            unlogged_N,
            goes_on_N * unlogged_N[next_N],
            np.concatenate([np.asarray(episode.rewards, dtype=float) for episode in episodes]),
            np.repeat(np.arange(len(episodes)), lengths),
            first_E,
        )


class TabularCritic:
    """Action values of the evaluated policy. Each starts at the mean return of the log, with the weight `PRIOR`.

    Args:
        weights_E: number of times that each episode counts; 0 leaves it out.

    Attributes:
        default: mean return, the value of every pair that was never logged.
        q_P: value of each pair.
    """

    def __init__(self, log: LogMatrices, weights_E: Array) -> None:
        from scipy.sparse import diags
        from scipy.sparse.linalg import spsolve

        self.log = log
        returns_E = np.bincount(log.episode_N, log.reward_N)
        self.default = float(weights_E @ returns_E / weights_E.sum())
        weights_N = weights_E[log.episode_N]
        counts_P = PRIOR + log.taken_NP.T @ weights_N
        targets_P = PRIOR * self.default + log.taken_NP.T @ (
            weights_N * (log.reward_N + self.default * log.unlogged_next_N)
        )
        successors_PP = log.taken_NP.T @ (diags(weights_N) @ log.following_NP)
        self.q_P: Array = np.atleast_1d(spsolve((diags(counts_P) - successors_PP).tocsc(), targets_P))

    def errors_N(self) -> Array:
        """Return the reward plus the next state's value minus the taken action's value, for each step."""
        following_N = self.log.following_NP @ self.q_P + self.default * self.log.unlogged_next_N
        errors: Array = self.log.reward_N + following_N - self.log.taken_NP @ self.q_P
        return errors

    def values_E(self) -> Array:
        """Return the value of each episode's first state."""
        values_N = self.log.policy_NP @ self.q_P + self.default * self.log.unlogged_N
        first: Array = values_N[self.log.first_E]
        return first

    def q(self, state: str, action: int) -> float:
        """Return the value of an action in a state."""
        row = self.log.pairs.get((state, action))
        return self.default if row is None else float(self.q_P[row])
