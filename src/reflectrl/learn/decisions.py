"""Supervised training of a policy that scores options or texts by a trie: rows, and their listwise loss.

A row is one decision: a prompt, the texts of its options, and a target probability for each. The target may be one
action, several that are equally good, or any distribution. The loss is the cross-entropy between target and policy, so
all options of a row are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reflectrl.core.episodes import ChoiceRow
from reflectrl.models.backend import Candidates, Scoring
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import Ids, Packing, pack


class Decision(NamedTuple):
    """Prompt with options and their target. In a mean loss, it counts as much as a single token of an `Example`.

    Attributes:
        ids: tokens of the prompt.
        start: index of the prompt's last token, behind which the options are read.
        candidates: tokens of the options.
        target: probability of each option. The sum is 1.
        weight: weight of the loss.
        further: auxiliary decisions about the same state.
        scoring: scoring of the policy, the same for all rows of a training.
    """

    ids: Ids
    start: int
    candidates: Candidates
    target: tuple[float, ...]
    weight: float = 1.0
    further: tuple[Decision, ...] = ()
    scoring: Scoring = "options"


def decision_of(policy: Policy, row: ChoiceRow, auxiliary_coef: float = 0.0) -> Decision:
    """Tokenise a row.

    Args:
        policy: policy that scores options, or texts by a trie.
        auxiliary_coef: weight of the row's further questions, shared equally among them.
    """
    actions, further = row.observation.actions, []
    weights = row.preferences or tuple(float(i == row.target) for i in range(len(actions)))
    for question in row.questions if auxiliary_coef else ():
        prompt = policy.question_prompt(row.observation, row.reflection, question.text, question.answers)
        target = tuple(float(i == question.correct) for i in range(len(question.answers)))
        weight = auxiliary_coef / len(row.questions)
        candidates = policy.candidates(question.answers)
        further.append(Decision(prompt, len(prompt) - 1, candidates, target, weight, (), policy.scoring))
    prompt, total = policy.prompt(row.observation, row.reflection), sum(weights)
    target = tuple(weight / total for weight in weights)
    candidates = policy.candidates(actions)
    return Decision(prompt, len(prompt) - 1, candidates, target, 1.0, tuple(further), policy.scoring)


def read_tokens(row: Decision) -> int:
    """Return the number of tokens that are read for a row, without any sharing."""
    options = sum(map(len, row.candidates.ids))
    return len(row.ids) + options + sum(read_tokens(question) for question in row.further)


def decision_nll(lm: LanguageModel, rows: Sequence[Decision], packing: Packing) -> tuple[Tensor, Tensor]:
    """Compute the cross-entropy (N,) of each row in nats, with gradient, and a mask (N,) of correct choices.

    A choice is correct if the most probable option is one of those with the highest target.

    Args:
        packing: the rows' prompts, packed.
    """
    logits_NA, _ = lm.backend.score(packing, [row.candidates for row in rows], rows[0].scoring)
    target_NA = torch.zeros(logits_NA.shape)
    for i, row in enumerate(rows):
        target_NA[i, : len(row.target)] = torch.tensor(row.target)
    target_NA = target_NA.to(logits_NA.device)
    logp_NA = logits_NA.log_softmax(-1)
    # Beyond a row's own options, log-probabilities are -inf and targets 0. Their product would be NaN.
    nll_N = -(target_NA * logp_NA.masked_fill(target_NA == 0, 0.0)).sum(-1)
    chosen_N1 = logits_NA.argmax(-1, keepdim=True)
    correct_N = target_NA.gather(1, chosen_N1)[:, 0] == target_NA.amax(-1)
    return nll_N, correct_N


def decisions_loss(lm: LanguageModel, rows: Sequence[Decision]) -> Tensor:
    """Return the weighted loss (nats), summed over rows and their further questions."""
    all_rows = [*rows, *(question for row in rows for question in row.further)]
    nll_N, _ = decision_nll(lm, all_rows, pack([row.ids for row in all_rows]))
    weights_N = torch.tensor([row.weight for row in all_rows], device=nll_N.device)
    return (weights_N * nll_N).sum()
