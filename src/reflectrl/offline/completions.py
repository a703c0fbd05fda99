"""What offline learning learns from: prompts with a completion each, in text or among the actions of an environment.

Both are scored through the engine, which pads nothing: a completion's log-probabilities depend on its own prompt only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from reflectrl.episodes import task_key
from reflectrl.learn.rollouts import flatten, policy_pass
from reflectrl.models.lm import LanguageModel
from reflectrl.models.sharing import Ids, portions
from reflectrl.offline.config import OfflineConfig
from reflectrl.players.policy import Policy
from reflectrl.types import Episode, UserError


class Completions(Protocol):
    """Prompts, each with one completion.

    Attributes:
        prompts: their token ids.
        answers: what tells the completions of one prompt apart: token ids, or the index of the action.
        about: how they are scored (kind, temperature ...), as JSON values.
    """

    lm: LanguageModel
    prompts: list[Ids]
    answers: list[Ids]
    about: dict[str, object]

    def __len__(self) -> int: ...

    def logprobs(self, index: Sequence[int]) -> Tensor:
        """Log-probabilities (n, T) of the completions' tokens, in nats, padded with 0; gradients flow."""
        ...

    def lengths(self, index: Sequence[int]) -> Tensor:
        """How many of the T are a completion's own, (n,)."""
        ...


class StepCompletions:
    """The choices of logged steps: one log-probability each, among the legal actions and at the policy's temperature,
    as it is when the policy plays. A turn is one action, so its ratio stands alone; steps are never multiplied.
    """

    def __init__(self, policy: Policy, episodes: Sequence[Episode], gamma: float = 1.0) -> None:
        self.policy, self.lm = policy, policy.lm
        self.steps = flatten(policy, episodes, gamma)
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
    """How rewards were mapped: x -> (x - shift) · scale."""

    shift: float = 0.0
    scale: float = 1.0

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.shift) * self.scale


def onto_unit(values: Tensor) -> Affine:
    """The map that takes the least value to 0 and the greatest to 1; equal values all go to 0."""
    low, high = float(values.min()), float(values.max())
    return Affine(low, 1 / (high - low) if high > low else 1.0)


@dataclass(frozen=True)
class Dataset:
    """Completions and what they earned; N of them.

    Attributes:
        rewards_N: mapped by `affine`: between 0 and 1 for steps, as they are for text.
        groups: what completions of one prompt share; preferences are made within a group.
        units: what a held-out slice must not tear apart: the task of a step, the group of a text.
    """

    completions: Completions
    rewards_N: Tensor
    groups: Sequence[str]
    units: Sequence[str]
    affine: Affine = Affine()

    def __len__(self) -> int:
        return len(self.completions)

    def fingerprint(self) -> str:
        """Identifies the data: tokens, rewards, and how they are scored."""
        digest = hashlib.sha256(repr((self.completions.about, self.affine)).encode())
        for rows in (self.completions.prompts, self.completions.answers, self.groups, self.units):
            digest.update(repr([tuple(row) if not isinstance(row, str) else row for row in rows]).encode())
        digest.update(self.rewards_N.double().numpy().tobytes())
        return digest.hexdigest()[:16]

    def portions(self, index: Sequence[int]) -> Iterable[Sequence[int]]:
        """The rows of `index`, as many at a time as a pass without gradients takes well."""
        prompts, answers = self.completions.prompts, self.completions.answers
        sizes = [len(prompts[i]) + len(answers[i]) for i in index]
        return (index[rows] for rows in portions(sizes, self.completions.lm.pass_tokens))


def step_dataset(policy: Policy, episodes: Sequence[Episode], config: OfflineConfig) -> Dataset:
    """The steps of logged episodes; a step's reward is its reward-to-go, mapped onto [0, 1].

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
