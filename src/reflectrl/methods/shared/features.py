"""Features of states from a frozen language model, as input of critics, together with the model's probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reflectrl.learn.losses import restricted_log_softmax
from reflectrl.models.players import Actions, Policy, Question
from reflectrl.models.sharing import Ids, chunks, pack


class StateFeatures(NamedTuple):
    """N states with up to A listed actions each.

    Attributes:
        states_ND: last hidden states at the prompts' last tokens, in the model's own dtype.
        actions_NAD: last hidden states at the last token of each action after its prompt; 0 beyond a state's actions.
        logp_NA: the model's log-probabilities of the actions; -inf beyond a state's actions.
    """

    states_ND: Tensor
    actions_NAD: Tensor
    logp_NA: Tensor


@torch.no_grad()
def read_states(policy: Policy, questions: Sequence[Question], temperature: float = 1.0) -> StateFeatures:
    """Encode prompts and their actions. Shared prefixes are encoded once.

    A prompt that fills the context loses its first tokens, to leave room for the action after it.

    Args:
        temperature: temperature of the log-probabilities, independent of the policy's temperature.
    """
    lm = policy.lm
    answers = [[spoken(policy, actions, label) for label in range(len(actions))] for _, actions in questions]
    states, actions, logp = ([torch.empty(0)] * len(questions) for _ in range(3))
    for part in passes(policy, questions):
        batch, counts = [questions[i] for i in part], [len(answers[i]) for i in part]
        logits_NA, hidden_ND = policy.logits(*zip(*batch, strict=True))
        sequences = [(*questions[i][0], *answer)[-lm.context :] for i in part for answer in answers[i]]
        action_states = lm.backend.read(pack(sequences)).split(counts)
        for k, i in enumerate(part):
            states[i], actions[i] = hidden_ND[k], action_states[k]
            logp[i] = (logits_NA[k, : counts[k]] / temperature).float().log_softmax(-1)
    logp_NA = pad_sequence(logp, batch_first=True, padding_value=-torch.inf)
    return StateFeatures(torch.stack(states), pad_sequence(actions, batch_first=True), logp_NA)


def passes(policy: Policy, questions: Sequence[Question]) -> Iterator[list[int]]:
    """Split questions into forward passes of suitable size, sorted so that similar prompts are neighbours."""
    order = sorted(range(len(questions)), key=lambda i: questions[i][0])
    sizes = [len(questions[i][0]) + len(questions[i][1]) for i in order]
    return (order[rows] for rows in chunks(sizes, policy.lm.pass_tokens))


def spoken(policy: Policy, actions: Actions, label: int) -> Ids:
    """Return the tokens that choose the action with a label (numbered from 0), without end-of-text."""
    ids = policy.candidates(actions).ids[label]
    return ids[:-1] if len(ids) > 1 and ids[-1] == policy.lm.end else ids


def choice_logp(policy: Policy, questions: Sequence[Question]) -> Tensor:
    """Return the policy's log-probabilities (N, A) at its sampling temperature, with gradient. Padding is -inf."""
    logits_NA, _ = policy.logits(*zip(*questions, strict=True))
    counts_N = torch.tensor([len(actions) for _, actions in questions], device=logits_NA.device)
    legal_NA = torch.arange(logits_NA.shape[1], device=logits_NA.device)[None] < counts_N[:, None]
    return restricted_log_softmax(logits_NA / (policy.sampling.temperature or 1.0), legal_NA)


@torch.no_grad()
def choice_table(policy: Policy, questions: Sequence[Question], width: int) -> Tensor:
    """Return `choice_logp` of any number of questions without gradient, on the CPU, padded to `width`: (N, width)."""
    table_NA = torch.full((len(questions), width), -torch.inf)
    for part in passes(policy, questions):
        logp_NA = choice_logp(policy, [questions[i] for i in part]).cpu()
        table_NA[part, : logp_NA.shape[1]] = logp_NA.float()
    return table_NA
