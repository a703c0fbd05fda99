"""Logged steps as input of a critic: the reference's features of each step, and the transition that followed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.core.types import Episode, UserError
from reflectrl.methods.shared.features import spoken
from reflectrl.methods.shared.offline.completions import Dataset, StepCompletions
from reflectrl.models.sharing import Ids, pack


@dataclass(frozen=True)
class StepFeatures:
    """The reference's last hidden states of N logged steps, in its own dtype.

    Attributes:
        states_ND: hidden states at the prompt's last token.
        actions_ND: hidden states at the last token of the action after the prompt (its label, or the end of its text).
    """

    states_ND: Tensor
    actions_ND: Tensor

    def to(self, device: torch.device) -> StepFeatures:
        """Return a copy on another device."""
        return StepFeatures(self.states_ND.to(device), self.actions_ND.to(device))


@torch.no_grad()
def step_features(data: Dataset) -> StepFeatures:
    """Encode every logged step once; return features on the CPU. A prompt that fills the context loses its start."""
    logged, lm, prompts = logged_steps(data), data.completions.lm, data.completions.prompts
    states: list[Tensor] = [torch.empty(0)] * len(data)
    actions = list(states)
    for part in data.chunks(sorted(range(len(data)), key=lambda i: prompts[i])):
        answers = [_answer(logged, i) for i in part]
        packing = pack([(*prompts[i], *answer)[-lm.context :] for i, answer in zip(part, answers, strict=True)])
        token_indices = [packing.token_indices(k) for k in range(len(part))]
        before = [indices[-1 - len(answer)] for indices, answer in zip(token_indices, answers, strict=True)]
        hidden_MD = lm.backend.read(packing, [*before, *(indices[-1] for indices in token_indices)]).cpu()
        for k, i in enumerate(part):
            states[i], actions[i] = hidden_MD[k], hidden_MD[len(part) + k]
    return StepFeatures(torch.stack(states), torch.stack(actions))


def logged_steps(data: Dataset) -> StepCompletions:
    """Return the data's completions, which must be episode steps.

    Raises:
        UserError: they are texts, which have no next state.
    """
    if not isinstance(data.completions, StepCompletions):
        raise UserError("offline: archer learns from the steps of episode logs (recipe offline-taxi), not from samples")
    return data.completions


def _answer(logged: StepCompletions, i: int) -> Ids:
    """Return the tokens of the action that was taken, without end-of-text."""
    return spoken(logged.policy, logged.steps.actions[i], int(logged.steps.labels_N[i]))


@dataclass(frozen=True)
class Transitions:
    """Transitions of N logged steps. Rewards have the scale of the data's mapped rewards, but no shift.

    Attributes:
        rewards_N: reward of the step itself.
        returns_N: discounted reward-to-go in the log.
        next_N: index of the next step; -1 where the episode ended.
        truncated_N: True if the episode was truncated after this step. The next state is not in the log, so nothing is
            learned from the step.
    """

    rewards_N: Tensor
    returns_N: Tensor
    next_N: Tensor
    truncated_N: Tensor

    def fingerprint(self) -> str:
        """Return a hash of the transitions."""
        return hashlib.sha256(repr([tensor.tolist() for tensor in vars(self).values()]).encode()).hexdigest()[:16]


def transitions(data: Dataset, episodes: Sequence[Episode]) -> Transitions:
    """Return the transitions of the data's steps, in the same order.

    Args:
        episodes: the episodes from which the data was made.
    """
    steps, scale = logged_steps(data).steps, data.affine.scale
    lasts = torch.tensor(steps.ends) - 1
    next_N = torch.arange(1, len(steps) + 1)
    next_N[lasts] = -1
    truncated_N = torch.zeros(len(steps), dtype=torch.bool)
    truncated_N[lasts] = torch.tensor([episode.truncated for episode in episodes if episode.steps])
    return Transitions(steps.rewards_N * scale, steps.returns_N * scale, next_N, truncated_N)
