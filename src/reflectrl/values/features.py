"""What a frozen language model makes of states: the features that critics read, and its own probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reflectrl.learn.losses import restricted_log_softmax
from reflectrl.models.sharing import Ids, pack, portions
from reflectrl.players.policy import Actions, Policy, Question


class StateFeatures(NamedTuple):
    """N states with up to A listed actions each.

    Attributes:
        states_ND: last hidden states at the prompts' last tokens, in the model's own dtype.
        actions_NAD: those at the last token of each action behind its prompt; 0 beyond a state's own actions.
        logp_NA: the model's log-probabilities of the actions; -inf beyond a state's own.
    """

    states_ND: Tensor
    actions_NAD: Tensor
    logp_NA: Tensor


@torch.no_grad()
def read_states(policy: Policy, questions: Sequence[Question], temperature: float = 1.0) -> StateFeatures:
    """Read prompts and their actions; what they have in common is read once.

    A prompt that fills the context loses its first tokens to the action behind it.

    Args:
        temperature: of the log-probabilities, whatever that of the policy is.
    """
    lm = policy.lm
    answers = [[spoken(policy, actions, label) for label in range(len(actions))] for _, actions in questions]
    states, actions, logp = ([torch.empty(0)] * len(questions) for _ in range(3))
    for part in passes(policy, questions):
        asked, counts = [questions[i] for i in part], [len(answers[i]) for i in part]
        logits_NA, hidden_ND = policy.logits(*zip(*asked, strict=True))
        spelled = [(*questions[i][0], *answer)[-lm.context :] for i in part for answer in answers[i]]
        read = lm.backend.read(pack(spelled)).split(counts)
        for k, i in enumerate(part):
            states[i], actions[i] = hidden_ND[k], read[k]
            logp[i] = (logits_NA[k, : counts[k]] / temperature).float().log_softmax(-1)
    logp_NA = pad_sequence(logp, batch_first=True, padding_value=-torch.inf)
    return StateFeatures(torch.stack(states), pad_sequence(actions, batch_first=True), logp_NA)


def passes(policy: Policy, questions: Sequence[Question]) -> Iterator[list[int]]:
    """Which questions go through the model together: neighbours by prompt, as many as a pass takes well."""
    order = sorted(range(len(questions)), key=lambda i: questions[i][0])
    sizes = [len(questions[i][0]) + len(questions[i][1]) for i in order]
    return (order[rows] for rows in portions(sizes, policy.lm.pass_tokens))


def spoken(policy: Policy, actions: Actions, label: int) -> Ids:
    """The tokens that take the action listed under a label (numbered from 0), without end-of-text."""
    ids = policy.answers(actions).ids[label]
    return ids[:-1] if len(ids) > 1 and ids[-1] == policy.lm.end else ids


def choice_logp(policy: Policy, questions: Sequence[Question]) -> Tensor:
    """The policy's log-probabilities (N, A) at the temperature of its sampling, with gradient; -inf as above."""
    logits_NA, _ = policy.logits(*zip(*questions, strict=True))
    counts_N = torch.tensor([len(actions) for _, actions in questions], device=logits_NA.device)
    legal_NA = torch.arange(logits_NA.shape[1], device=logits_NA.device)[None] < counts_N[:, None]
    return restricted_log_softmax(logits_NA / (policy.sampling.temperature or 1.0), legal_NA)


@torch.no_grad()
def choice_table(policy: Policy, questions: Sequence[Question], width: int) -> Tensor:
    """The same for any number of questions, without gradient, on the CPU, padded to `width` actions: (N, width)."""
    table_NA = torch.full((len(questions), width), -torch.inf)
    for part in passes(policy, questions):
        logp_NA = choice_logp(policy, [questions[i] for i in part]).cpu()
        table_NA[part, : logp_NA.shape[1]] = logp_NA.float()
    return table_NA
