"""Rows of supervised fine-tuning as tokens, how they are grouped into batches, and their loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reflectrl.config import SFTConfig
from reflectrl.episodes import ChoiceRow, ReflectionRow
from reflectrl.learn.losses import completion_nll
from reflectrl.models.engine import packed_hidden, tokenize
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids, Packing, apart, portions, shared_length
from reflectrl.players.policy import Policy
from reflectrl.types import named_seed

ACTIVATIONS = 4 * 2**30
"""About how many bytes of activations a pass keeps for its gradient; a batch that takes more goes in several passes."""


class Example(NamedTuple):
    """Token ids of prompt and completion; the loss is on `ids[start:]`."""

    ids: Ids
    start: int


class Examples(Sequence[Example]):
    """Rows that are turned into tokens when they are asked for, since a short training sees few of many.

    Attributes:
        histories: what each row's prompt begins with; rows of one episode stand in order, so theirs only grows.
    """

    def __init__(self, histories: Sequence[str], encode: Callable[[int], Example]) -> None:
        self._count, self._encode, self.histories = len(histories), encode, histories

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._encode(i) for i in range(*index.indices(self._count))]
        return self._encode(int(index))


def reflection_examples(lm: LanguageModel, rows: Sequence[ReflectionRow]) -> Examples:
    """Rows of the reflector as tokens; the completion ends with end-of-text."""

    def encode(index: int) -> Example:
        completion = [*lm.encode(rows[index].completion), lm.tokenizer.eos_token_id]
        prompt = tokenize(lm, rows[index].prompt, reserve=len(completion))
        return Example((*prompt, *completion), len(prompt))

    return Examples([row.prompt.history for row in rows], encode)


def choice_examples(policy: Policy, rows: Sequence[ChoiceRow], seed: int) -> Examples:
    """Rows of the policy as tokens; the completion is one label, or the action's text where the policy scores texts.

    Labels are shuffled where the policy shuffles them.
    """

    def encode(index: int) -> Example:
        row = rows[index]
        count = len(row.observation.actions)
        rng = np.random.default_rng(named_seed(seed, "label order", index))
        order = [int(i) for i in rng.permutation(count)] if policy.shuffle_labels else list(range(count))
        prompt = policy.prompt(row.observation, row.reflection, order)
        answer = policy.answer(row.observation.actions, row.target, order.index(row.target))
        return Example((*prompt, *answer), len(prompt))

    return Examples([row.observation.history for row in rows], encode)


# ---- batches ---------------------------------------------------------------------------------------------------------


def row_groups(rows: Sequence[Example], by_episode: bool) -> list[range]:
    """Rows in groups: those of one episode, whose history only grows; or each row alone."""
    if not by_episode or not isinstance(rows, Examples):
        return [range(i, i + 1) for i in range(len(rows))]
    texts = rows.histories
    starts = [i for i, text in enumerate(texts) if not (i and texts[i - 1] and text.startswith(texts[i - 1]))]
    return [range(start, end) for start, end in pairwise([*starts, len(texts)])]


def spread(groups: Sequence[range], most: int) -> list[int]:
    """Rows of whole groups, spread evenly over all groups; `most` rows or a few more."""
    rows = sum(map(len, groups))
    count = max(1, min(len(groups), round(most * len(groups) / rows)))
    return [row for i in range(count) for row in groups[i * len(groups) // count]]


def shuffled_batches(groups: Sequence[range], batch_size: int, seed: int, skip: int) -> Iterator[np.ndarray]:
    """Row indices, epoch after epoch, the groups in a new order each; the first `skip` batches are passed over."""
    epoch, given = 0, 0
    while True:
        order = np.random.default_rng(named_seed(seed, "epoch", epoch)).permutation(len(groups))
        rows = np.concatenate([groups[i] for i in order])
        for start in range(0, len(rows), batch_size):
            given += 1
            if given > skip:
                yield rows[start : start + batch_size]
        epoch += 1


def micro_batches(rows: Sequence[Example], lm: LanguageModel, config: SFTConfig) -> Iterator[slice]:
    """Which rows of a batch go through the model together: as many as `ACTIVATIONS` allows, or as the user says."""
    if config.accumulate:
        return portions([1] * len(rows), math.ceil(len(rows) / config.accumulate))
    earlier: list[Ids] = [(), *(row.ids for row in rows)]
    shared = [shared_length(*pair) if config.by_episode else 0 for pair in pairwise(earlier)]
    sizes = []
    for row, known in zip(rows, shared, strict=True):
        scored = len(row.ids) - (known if config.text_coef else row.start)
        sizes.append((len(row.ids) - known) * lm.activation_bytes + scored * lm.logits_bytes)
    return portions(sizes, ACTIVATIONS)


# ---- the loss --------------------------------------------------------------------------------------------------------


def summed_nll(
    lm: LanguageModel, rows: Sequence[Example], share: Callable[[Sequence[Ids]], Packing], text: bool = False
) -> tuple[Tensor, Tensor]:
    """Summed loss over the completion tokens of a batch, and the mean loss over the prompts' own tokens if asked for.

    Logits are computed at scored positions only. The rows are packed by `share`: one behind another, or with what they
    have in common once. No token is padding.

    The loss of the text itself counts the blocks that begin a prompt (the others go on from a shared one). Text that
    repeats itself ("> go to desk 1", "You arrive at desk 1.") gives a model made from scratch many more occasions to
    learn to look things up in what it has read than the completions do.
    """
    packing = share([row.ids[:-1] for row in rows])
    places = [p for i, row in enumerate(rows) for p in packing.places(i)[row.start - 1 :]]
    hidden_ND = packed_hidden(lm, packing, None if text else places)
    targets_M = torch.tensor([t for row in rows for t in row.ids[row.start :]], device=lm.device)
    logits_MV = lm.logits(hidden_ND[places] if text else hidden_ND).float()
    nll = completion_nll(logits_MV, targets_M) * len(targets_M)
    if not text:
        return nll, nll.new_zeros(())
    begun, targets, start = list[int](), list[int](), 0
    for block in packing.blocks:
        if block.start == 0:
            begun += range(start, start + len(block.ids) - 1)
            targets += block.ids[1:]
        start += len(block.ids)
    return nll, completion_nll(lm.logits(hidden_ND[begun]).float(), torch.tensor(targets, device=lm.device))


@torch.no_grad()
def evaluate_loss(
    lm: LanguageModel, examples: Sequence[Example], batch_size: int, share: Callable[[Sequence[Ids]], Packing] = apart
) -> float:
    """Mean loss per completion token (nats)."""
    tokens = sum(len(row.ids) - row.start for row in examples)
    batches = (examples[i : i + batch_size] for i in range(0, len(examples), batch_size))
    return sum(float(summed_nll(lm, batch, share)[0]) for batch in batches) / tokens
