"""Data of offline learning: prompts with one completion each, a text or an action of an environment.

Both are scored by the engine, which uses no padding. So a completion's log-probabilities depend only on its own prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from reflectrl.core.episodes import task_key
from reflectrl.core.types import Episode, UserError
from reflectrl.learn.steps import flatten, policy_pass
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import Ids, chunks


class Completions(Protocol):
    """Prompts, each with one completion.

    Attributes:
        prompts: token ids of the prompts.
        answers: identity of each completion among those with the same prompt: token ids, or the action's index.
        about: settings of scoring (kind, temperature ...), as JSON values.
    """

    lm: LanguageModel
    prompts: list[Ids]
    answers: list[Ids]
    about: dict[str, object]

    def __len__(self) -> int: ...

    def logprobs(self, index: Sequence[int]) -> Tensor:
        """Return log-probabilities (n, T) of the completions' tokens, in nats, padded with 0, with gradient."""
        ...

    def lengths(self, index: Sequence[int]) -> Tensor:
        """Return the length of each completion in tokens, (n,), without the padding."""
        ...


class StepCompletions:
    """The choices of logged steps. Each has one log-probability, over the legal actions at the policy's temperature,
    exactly as in play. Every step has its own importance ratio; the ratios of an episode are never multiplied.
    """

    def __init__(self, policy: Policy, episodes: Sequence[Episode], gamma: float = 1.0) -> None:
        self.policy, self.lm = policy, policy.lm
        # The reference and the learner are compared over all legal actions, whatever the player of the log left out.
        self.steps = replace(flatten(policy, episodes, gamma), supports=[])
        self.prompts = self.steps.prompts
        self.answers: list[Ids] = [(label,) for label in self.steps.labels_N.tolist()]
        temperature = policy.sampling.temperature or 1.0
        self.about: dict[str, object] = {"kind": "steps", "temperature": temperature, "scoring": policy.scoring}

    def __len__(self) -> int:
        return len(self.steps)

    def lengths(self, index: Sequence[int]) -> Tensor:
        return torch.ones(len(index), dtype=torch.long)

    def logprobs(self, index: Sequence[int]) -> Tensor:
        logp_NA, _ = policy_pass(self.policy, self.steps, index)
        return logp_NA.gather(1, self.steps.labels_N[list(index)].to(logp_NA.device)[:, None])


@dataclass(frozen=True)
class Affine:
    """Affine map of rewards: x -> (x - shift) · scale."""

    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.shift) * self.scale


def onto_unit(values: Tensor) -> Affine:
    """Return the map that takes the smallest value to 0 and the largest to 1. If all are equal, they go to 0."""
    low, high = float(values.min()), float(values.max())
    return Affine(low, 1 / (high - low) if high > low else 1.0)


@dataclass(frozen=True)
class Dataset:
    """N completions with their rewards.

    Attributes:
        rewards_N: rewards, mapped by `affine`: onto [0, 1] for steps, unchanged for text.
        groups: name shared by the completions of one prompt. Preferences are made within a group.
        units: name of the unit that is held out as a whole: the task of a step, the group of a text.
        imitable: whether each completion is worth imitating; empty if all are.
    """

    completions: Completions
    rewards_N: Tensor
    groups: Sequence[str]
    units: Sequence[str]
    affine: Affine = Affine()
    imitable: Sequence[bool] = ()

    def __len__(self) -> int:
        return len(self.completions)

    def fingerprint(self) -> str:
        """Return a hash of the data: tokens, rewards, and the settings of scoring."""
        digest = hashlib.sha256(repr((self.completions.about, self.affine)).encode())
        for rows in (self.completions.prompts, self.completions.answers, self.groups, self.units):
            digest.update(repr([tuple(row) if not isinstance(row, str) else row for row in rows]).encode())
        digest.update(self.rewards_N.double().numpy().tobytes())
        return digest.hexdigest()[:16]

    def chunks(self, index: Sequence[int]) -> Iterable[Sequence[int]]:
        """Split the rows of `index` into chunks that suit a forward pass without gradients."""
        prompts, answers = self.completions.prompts, self.completions.answers
        sizes = [len(prompts[i]) + len(answers[i]) for i in index]
        return (index[rows] for rows in chunks(sizes, self.completions.lm.pass_tokens))


def step_dataset(policy: Policy, episodes: Sequence[Episode], config: OfflineConfig) -> Dataset:
    """Build a data set from the steps of logged episodes. A step's reward is its reward-to-go, mapped onto [0, 1].

    Raises:
        UserError: there are no steps.
    """
    episodes = [episode for episode in episodes if episode.steps]
    if not episodes:
        raise UserError("offline: the log holds no steps")
    completions = StepCompletions(policy, episodes, config.gamma)
    returns_N = completions.steps.returns_N
    affine = onto_unit(returns_N)
    groups = [hashlib.sha256(repr(prompt).encode()).hexdigest()[:16] for prompt in completions.prompts]
    units = list(chain.from_iterable([task_key(episode.task)] * len(episode.steps) for episode in episodes))
    return Dataset(completions, affine(returns_N), groups, units, affine)
