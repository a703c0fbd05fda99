"""The replay buffer of transitions: what was done in which state, what it earned, and which state followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from reflectrl.learn.rollouts import Steps
from reflectrl.players.policy import Policy, Question
from reflectrl.types import Episode, UserError
from reflectrl.values.features import StateFeatures, read_states

END = -1
"""What follows the last step of an episode."""


class Drawn(NamedTuple):
    """N transitions; states are numbers of the buffer's.

    Attributes:
        state_N: in which state the action was taken.
        label_N: which one, by its place in the list.
        reward_N: what the learner is paid for it.
        next_N: the state that followed, or END.
    """

    state_N: Tensor
    label_N: Tensor
    reward_N: Tensor
    next_N: Tensor


class TransitionBuffer(nn.Module):
    """The latest transitions, and what a frozen model makes of each distinct state among them, read once; on the CPU.

    A module, so that a trainer saves its tensors with the weights; it has no parameters. `questions` are saved beside.

    Args:
        size: most transitions kept.
        policy: the frozen model that reads; prompts are those that it would be asked.
        temperature: at which its log-probabilities are kept.

    Attributes:
        questions: prompt and actions of each state.
    """

    states_SD: Tensor
    actions_SAD: Tensor
    prior_SA: Tensor
    """Log-probabilities of the frozen model."""

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
        """All of them, oldest first."""
        return Drawn(*(self.get_buffer(name) for name in Drawn._fields))

    def add(self, steps: Steps, episodes: Sequence[Episode]) -> None:
        """Keep the transitions of episodes. A step with which an episode was broken off is left out: something would
        have followed, but the episode does not hold the state.

        Args:
            steps: those of the episodes, flattened.
        """
        asked = list(zip(steps.prompts, steps.actions, strict=True))
        if new := [question for question in dict.fromkeys(asked) if question not in self._numbers]:
            self._append(new, read_states(self.policy, new, self.temperature))
        state_N = torch.tensor([self._numbers[question] for question in asked])
        next_N, lasts = state_N.roll(-1), torch.tensor(steps.ends) - 1
        next_N[lasts] = END
        known_N = torch.ones(len(steps), dtype=torch.bool)
        known_N[lasts] = ~torch.tensor([episode.truncated for episode in episodes])
        fresh = Drawn(state_N, steps.labels_N, steps.rewards_N.float(), next_N)
        for name, before, more in zip(Drawn._fields, self.transitions(), fresh, strict=True):
            self.register_buffer(name, torch.cat([before, more[known_N]])[-self.size :])
        self._forget()
        if not len(self):
            raise UserError(
                "the horizon or the environment cut every episode off at its first step, so nobody knows what would"
                " have followed"
            )

    def draw(self, count: int, generator: torch.Generator) -> Drawn:
        """`count` transitions, uniformly and with replacement."""
        rows = torch.randint(len(self), (count,), generator=generator)
        return Drawn(*(kept[rows] for kept in self.transitions()))

    def features(self, state_N: Tensor) -> StateFeatures:
        """Features of states (N,) under the frozen model. Rows of END are arbitrary; the caller must mask them."""
        kept, device = (self.states_SD, self.actions_SAD, self.prior_SA), self.policy.lm.device
        return StateFeatures(*(tensor[state_N.cpu()].to(device) for tensor in kept))

    def _append(self, questions: Sequence[Question], found: StateFeatures) -> None:
        found = StateFeatures(*(tensor.cpu() for tensor in found))
        width = max(self.prior_SA.shape[1], found.logp_NA.shape[1])

        def wide(tensor: Tensor, value: float = 0.0) -> Tensor:
            return pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, width - tensor.shape[1]), value=value)

        self.states_SD = torch.cat([self.states_SD, found.states_ND])
        self.actions_SAD = torch.cat([wide(self.actions_SAD), wide(found.actions_NAD)])
        self.prior_SA = torch.cat([wide(self.prior_SA, -torch.inf), wide(found.logp_NA, -torch.inf)])
        self.load_questions([*self.questions, *questions])

    def _forget(self) -> None:
        """Drop the states that no transition speaks of any more."""
        kept = self.transitions()
        used = torch.cat([kept.state_N, kept.next_N]).unique()
        used = used[used != END]
        if len(used) == len(self.questions):
            return
        number_S = torch.full((len(self.questions) + 1,), END)  # the last place is that of END
        number_S[used] = torch.arange(len(used))
        self.state_N, self.next_N = number_S[kept.state_N], number_S[kept.next_N]
        for name in ("states_SD", "actions_SAD", "prior_SA"):
            self.register_buffer(name, self.get_buffer(name)[used])
        self.load_questions([self.questions[i] for i in used.tolist()])

    # ---- saved and loaded --------------------------------------------------------------------------------------------

    def load_state_dict(self, state: Mapping[str, Any], *_: Any, **__: Any) -> None:  # type: ignore[override]
        """Take tensors of whatever length."""
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    def load_questions(self, questions: Sequence[Any]) -> None:
        """Take the states' prompts and actions, as they are or as JSON values."""
        self.questions = [(tuple(ids), tuple(actions)) for ids, actions in questions]
        self._numbers = {question: i for i, question in enumerate(self.questions)}
