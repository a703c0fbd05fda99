"""Replay buffer of transitions: state, action, reward and next state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from reflectrl.core.types import Episode, UserError
from reflectrl.learn.steps import Steps
from reflectrl.methods.shared.features import StateFeatures, read_states
from reflectrl.models.players import Policy, Question

END = -1
"""Index of the next state after the last step of an episode."""


class Drawn(NamedTuple):
    """N transitions. States are given as indices into the buffer's states.

    Attributes:
        state_N: state in which the action was taken.
        label_N: index of the action in the state's list.
        reward_N: reward of the action, with reward shaping.
        next_N: next state, or END.
    """

    state_N: Tensor
    label_N: Tensor
    reward_N: Tensor
    next_N: Tensor


class TransitionBuffer(nn.Module):
    """The latest transitions, with a frozen model's features of each distinct state, computed once. Kept on the CPU.

    It is a module without parameters, so that a trainer saves its tensors with the weights. `questions` are saved
    separately (`state`).

    Args:
        size: largest number of transitions kept.
        policy: frozen model that encodes the states, with its own prompts.
        temperature: temperature of the log-probabilities that are kept.

    Attributes:
        questions: prompt and actions of each state.
    """

    states_SD: Tensor
    actions_SAD: Tensor
    prior_SA: Tensor
    """Log-probabilities of the actions under the frozen model."""

    def __init__(self, size: int, policy: Policy, temperature: float = 1.0) -> None:
        super().__init__()
        self.size, self.policy, self.temperature = size, policy, temperature
        self.questions: list[Question] = []
        self._numbers: dict[Question, int] = {}
        width, dtype = policy.lm.hidden_size, policy.lm.dtype
        empty = {"states_SD": (0, width), "actions_SAD": (0, 0, width), "prior_SA": (0, 0)}
        for name, shape in empty.items():
            self.register_buffer(name, torch.empty(shape, dtype=torch.float32 if name == "prior_SA" else dtype))
        for name in Drawn._fields:
            self.register_buffer(name, torch.empty(0, dtype=torch.float32 if name == "reward_N" else torch.long))

    def __len__(self) -> int:
        return len(self.transitions().state_N)

    def transitions(self) -> Drawn:
        """Return all transitions, oldest first."""
        return Drawn(*(self.get_buffer(name) for name in Drawn._fields))

    def add(self, steps: Steps, episodes: Sequence[Episode]) -> None:
        """Add the transitions of episodes. The last step of a truncated episode is left out, since the episode does not
        hold its next state.

        Args:
            steps: flattened steps of the episodes.

        Raises:
            UserError: the buffer is still empty, because every episode was truncated at its first step.
        """
        questions = list(zip(steps.prompts, steps.actions, strict=True))
        if new_questions := [question for question in dict.fromkeys(questions) if question not in self._numbers]:
            self._append(new_questions, read_states(self.policy, new_questions, self.temperature))
        state_N = torch.tensor([self._numbers[question] for question in questions])
        # Steps of an episode are neighbours, so the next row is the next state, except at an episode's last step.
        next_N, lasts = state_N.roll(-1), torch.tensor(steps.ends) - 1
        next_N[lasts] = END
        has_next_N = torch.ones(len(steps), dtype=torch.bool)
        has_next_N[lasts] = ~torch.tensor([episode.truncated for episode in episodes])
        new_transitions = Drawn(state_N, steps.labels_N, steps.rewards_N.float(), next_N)
        for name, before, added in zip(Drawn._fields, self.transitions(), new_transitions, strict=True):
            self.register_buffer(name, torch.cat([before, added[has_next_N]])[-self.size :])
        self._forget()
        if not len(self):
            raise UserError(
                "every episode was cut off at its first step, by the horizon or the environment, so there is no"
                " transition to learn from; raise the horizon"
            )

    def draw(self, count: int, generator: torch.Generator) -> Drawn:
        """Draw `count` transitions uniformly with replacement."""
        rows = torch.randint(len(self), (count,), generator=generator)
        return Drawn(*(column[rows] for column in self.transitions()))

    def tried(self) -> Tensor:
        """Return whether the transitions hold an action in a state, as booleans (S, A), on the CPU."""
        tried_SA = torch.zeros_like(self.prior_SA, dtype=torch.bool)
        transitions = self.transitions()
        tried_SA[transitions.state_N, transitions.label_N] = True
        return tried_SA

    def features(self, state_N: Tensor) -> StateFeatures:
        """Return features of states (N,) under the frozen model. Rows of END are arbitrary: the caller masks them."""
        tables, device = (self.states_SD, self.actions_SAD, self.prior_SA), self.policy.lm.device
        return StateFeatures(*(tensor[state_N.cpu()].to(device) for tensor in tables))

    def _append(self, questions: Sequence[Question], features: StateFeatures) -> None:
        features = StateFeatures(*(tensor.cpu() for tensor in features))
        width = max(self.prior_SA.shape[1], features.logp_NA.shape[1])

        def wide(tensor: Tensor, value: float = 0.0) -> Tensor:
            return pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, width - tensor.shape[1]), value=value)

        self.states_SD = torch.cat([self.states_SD, features.states_ND])
        self.actions_SAD = torch.cat([wide(self.actions_SAD), wide(features.actions_NAD)])
        self.prior_SA = torch.cat([wide(self.prior_SA, -torch.inf), wide(features.logp_NA, -torch.inf)])
        self.load([*self.questions, *questions])

    def _forget(self) -> None:
        """Drop states that no transition refers to any more."""
        transitions = self.transitions()
        used = torch.cat([transitions.state_N, transitions.next_N]).unique()
        used = used[used != END]
        if len(used) == len(self.questions):
            return
        new_index_S = torch.full((len(self.questions) + 1,), END)  # the last entry serves END, which is -1
        new_index_S[used] = torch.arange(len(used))
        self.state_N, self.next_N = new_index_S[transitions.state_N], new_index_S[transitions.next_N]
        for name in ("states_SD", "actions_SAD", "prior_SA"):
            self.register_buffer(name, self.get_buffer(name)[used])
        self.load([self.questions[i] for i in used.tolist()])

    # ---- saved and loaded --------------------------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any], *_: Any, **__: Any) -> None:  # type: ignore[override]
        """Load tensors of any length."""
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    def state(self) -> list[Question]:
        """Return the states' prompts and actions, which a trainer saves beside the tensors."""
        return self.questions

    def load(self, state: Sequence[Any]) -> None:
        """Load the states' prompts and actions, as tuples or as JSON values."""
        self.questions = [(tuple(ids), tuple(actions)) for ids, actions in state]
        self._numbers = {question: i for i, question in enumerate(self.questions)}
