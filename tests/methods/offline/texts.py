"""Texts to learn from: the smallest data set of prompts and completions that the offline learners take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from reflectrl.learn.examples import Example, completion_logits
from reflectrl.methods.shared.offline.completions import Dataset


class Text(NamedTuple):
    """A completion of a prompt, and what it earned; texts of one group share their prompt."""

    group: str
    prompt: str
    completion: str
    reward: float


class Texts:
    """Completions with their end-of-text: each token under the whole vocabulary."""

    def __init__(self, lm: Any, rows: Sequence[Text]) -> None:
        self.lm, self.about = lm, dict[str, object](kind="text")
        self.prompts = [lm.encode(row.prompt) for row in rows]
        self.answers = [(*lm.encode(row.completion), lm.tokenizer.eos_token_id) for row in rows]

    def __len__(self) -> int:
        return len(self.prompts)

    def lengths(self, index: Sequence[int]) -> Tensor:
        return torch.tensor([len(self.answers[i]) for i in index])

    def logprobs(self, index: Sequence[int]) -> Tensor:
        rows = [Example((*self.prompts[i], *self.answers[i]), len(self.prompts[i])) for i in index]
        logits_MV, _, targets_M = completion_logits(self.lm, rows)
        logp_M = -functional.cross_entropy(logits_MV, targets_M, reduction="none")
        return pad_sequence(logp_M.split(self.lengths(index).tolist()), batch_first=True)


def texts(lm: Any, rows: Sequence[Text]) -> Dataset:
    """The rows as tokens of a model; those of a group are held out together."""
    groups = [row.group for row in rows]
    return Dataset(Texts(lm, rows), torch.tensor([row.reward for row in rows]), groups, groups)
