"""Logged steps as a critic sees them: what the reference makes of each, and what followed it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.models.sharing import Ids, pack
from reflectrl.offline.completions import Dataset, StepCompletions
from reflectrl.types import Episode, UserError
from reflectrl.values.features import spoken


@dataclass(frozen=True)
class StepFeatures:
    """The reference's last hidden states of N logged steps, in its own dtype.

    Attributes:
        states_ND: at the prompt's last token.
        actions_ND: at the last token of the action behind it: the label, or the last one of the action's text.
    """

    states_ND: Tensor
    actions_ND: Tensor

    def to(self, device: torch.device) -> StepFeatures:
        """The same on another device."""
        return StepFeatures(self.states_ND.to(device), self.actions_ND.to(device))


@torch.no_grad()
def step_features(data: Dataset) -> StepFeatures:
    """Read every logged step once, on the CPU afterwards; a prompt that fills the context loses its first tokens."""
    logged, lm, prompts = logged_steps(data), data.completions.lm, data.completions.prompts
    states: list[Tensor] = [torch.empty(0)] * len(data)
    actions = list(states)
    for part in data.portions(sorted(range(len(data)), key=lambda i: prompts[i])):
        answers = [_answer(logged, i) for i in part]
        packing = pack([(*prompts[i], *answer)[-lm.context :] for i, answer in zip(part, answers, strict=True)])
        spelled = [packing.places(k) for k in range(len(part))]
        before = [places[-1 - len(answer)] for places, answer in zip(spelled, answers, strict=True)]
        hidden_MD = lm.backend.read(packing, [*before, *(places[-1] for places in spelled)]).cpu()
        for k, i in enumerate(part):
            states[i], actions[i] = hidden_MD[k], hidden_MD[len(part) + k]
    return StepFeatures(torch.stack(states), torch.stack(actions))


def logged_steps(data: Dataset) -> StepCompletions:
    """The data's completions, which must be steps.

    Raises:
        UserError: they are texts, of which nothing follows.
    """
    if not isinstance(data.completions, StepCompletions):
        raise UserError("offline: archer learns from the steps of episode logs (recipe offline-taxi), not from samples")
    return data.completions


def _answer(logged: StepCompletions, i: int) -> Ids:
    """The tokens of the action that was taken, without end-of-text."""
    return spoken(logged.policy, logged.steps.actions[i], int(logged.steps.labels_N[i]))


@dataclass(frozen=True)
class Transitions:
    """What followed N logged steps; rewards are scaled as those of the data are, but not shifted.

    Attributes:
        rewards_N: what the step itself earned.
        returns_N: what the log earned from there on, discounted.
        next_N: index of the step after it; -1 where the episode ended.
        truncated_N: whether the episode was broken off with this step: something would have followed, but the log does
            not hold the state, so nothing is learned from the step.
    """

    rewards_N: Tensor
    returns_N: Tensor
    next_N: Tensor
    truncated_N: Tensor

    def fingerprint(self) -> str:
        """Identifies what followed what."""
        return hashlib.sha256(repr([tensor.tolist() for tensor in vars(self).values()]).encode()).hexdigest()[:16]


def transitions(data: Dataset, episodes: Sequence[Episode]) -> Transitions:
    """What followed the steps of the episodes that the data was made of, in the same order."""
    steps, scale = logged_steps(data).steps, data.affine.scale
    lasts = torch.tensor(steps.ends) - 1
    next_N = torch.arange(1, len(steps) + 1)
    next_N[lasts] = -1
    truncated_N = torch.zeros(len(steps), dtype=torch.bool)
    truncated_N[lasts] = torch.tensor([episode.truncated for episode in episodes if episode.steps])
    return Transitions(steps.rewards_N * scale, steps.returns_N * scale, next_N, truncated_N)
