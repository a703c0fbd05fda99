"""Supervised fine-tuning: tokenised rows, their batches, and their loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import SFTConfig
from reflectrl.core.distributed import ALONE, Team
from reflectrl.core.episodes import ChoiceRow, ReflectionRow
from reflectrl.core.prompts import tokenize
from reflectrl.core.types import named_seed
from reflectrl.learn.decisions import Decision, decision_nll, decision_of, decisions_loss, read_tokens
from reflectrl.learn.losses import completion_nll
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.seq2seq import Seq2SeqBackend
from reflectrl.models.sharing import Ids, Packing, chunks, no_sharing, pack, shared_length

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Share = Callable[[Sequence[Ids]], Packing]


class Example(NamedTuple):
    """Token ids of a prompt and its completion. The loss is taken on the completion, `ids[start:]`."""

    ids: Ids
    start: int


Rows = Sequence[Example] | Sequence[Decision]
"""Training rows, all of the same kind."""


class Examples(Sequence[Any]):
    """Rows that are tokenised only when they are accessed, since a short training sees few of them.

    Attributes:
        histories: the history with which each row's prompt begins. Rows of an episode are in order, so it grows.
    """

    def __init__(self, histories: Sequence[str], encode: Callable[[int], Example | Decision]) -> None:
        self._count, self._encode, self.histories = len(histories), encode, histories

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._encode(i) for i in range(*index.indices(self._count))]
        return self._encode(int(index))


def reflection_examples(lm: LanguageModel, rows: Sequence[ReflectionRow]) -> Examples:
    """Tokenise the reflector's rows. A completion ends with end-of-text, or with the end of a chat turn."""

    def encode(index: int) -> Example:
        text = rows[index].completion
        if lm.chat is None:
            written = lm.encode(text, behind=rows[index].prompt.rest)
        else:
            written = lm.encode(text.lstrip(), behind=lm.chat.after)
        completion = [*written, lm.end]
        prompt = tokenize(lm, rows[index].prompt, reserve=len(completion))
        return Example((*prompt, *completion), len(prompt))

    return Examples([row.prompt.history for row in rows], encode)


def choice_examples(policy: Policy, rows: Sequence[ChoiceRow], seed: int, auxiliary_coef: float = 0.0) -> Examples:
    """Tokenise the policy's rows. The completion is a label, or the action's text if the policy scores texts.

    If the policy shuffles labels, they are shuffled here too. A policy that scores options gets `Decision`s, and so
    does one that scores texts by a trie if its model has short convolutions: over the whole vocabulary, such a model
    first learns which words occur at all, and learns rows by heart meanwhile (docs/results/reading.md).

    Args:
        auxiliary_coef: weight of the rows' further questions, if the policy gets decisions.
    """
    histories = [row.observation.history for row in rows]
    if policy.scoring == "options" or (policy.scoring == "trie" and policy.lm.taps):
        return Examples(histories, lambda index: decision_of(policy, rows[index], auxiliary_coef))

    def encode(index: int) -> Example:
        row = rows[index]
        count = len(row.observation.actions)
        order = list(range(count))
        if policy.shuffle_labels:
            order = np.random.default_rng(named_seed(seed, "label order", index)).permutation(count).tolist()
        prompt = policy.prompt(row.observation, row.reflection, order)
        answer = policy.answer(row.observation.actions, row.target, order.index(row.target))
        return Example((*prompt, *answer), len(prompt))

    return Examples(histories, encode)


# ---- batches ---------------------------------------------------------------------------------------------------------


def row_groups(rows: Rows, by_episode: bool) -> list[range]:
    """Group rows by episode, within which the history only grows, or put each row in its own group."""
    if not by_episode or not isinstance(rows, Examples):
        return [range(i, i + 1) for i in range(len(rows))]
    texts = rows.histories
    starts, before = [], ""
    for i, text in enumerate(texts):
        if not before or not text.startswith(before):  # an episode begins: its history does not continue the one before
            starts.append(i)
        before = text
    return [range(start, end) for start, end in pairwise([*starts, len(texts)])]


def spread(groups: Sequence[range], most: int) -> list[int]:
    """Select about `most` rows, as whole groups that are spread evenly over all groups."""
    rows = sum(map(len, groups))
    count = max(1, min(len(groups), round(most * len(groups) / rows)))
    selected = list[int]()
    for i in range(count):
        selected += groups[i * len(groups) // count]
    return selected


def shuffled_batches(groups: Sequence[range], batch_size: int, seed: int, skip: int) -> Iterator[np.ndarray]:
    """Yield batches of row indices, epoch after epoch, except the first `skip`. Groups are reshuffled every epoch."""
    epoch, batch_count = 0, 0
    while True:
        order = np.random.default_rng(named_seed(seed, "epoch", epoch)).permutation(len(groups))
        rows = np.concatenate([groups[i] for i in order])
        for start in range(0, len(rows), batch_size):
            batch_count += 1
            if batch_count > skip:
                yield rows[start : start + batch_size]
        epoch += 1


def micro_batches(rows: Rows, lm: LanguageModel, config: SFTConfig) -> Iterator[slice]:
    """Split a batch into passes of as many rows as `lm.pass_bytes` allows, or into `config.accumulate` passes."""
    if are_decisions(rows):
        row_bytes = [read_tokens(row) * lm.activation_bytes for row in rows]
        most = sum(row_bytes) if config.accumulate else lm.pass_bytes
        return chunks(row_bytes, most // max(1, config.accumulate))
    if config.accumulate:
        return chunks([1] * len(rows), math.ceil(len(rows) / config.accumulate))
    sizes: list[int] = []
    before: Ids = ()
    for row in rows:
        shared = 0
        if config.by_episode:
            shared = shared_length(before, row.ids)  # rows of an episode are packed, and their prefix is read once
        unshared, scored = len(row.ids) - shared, len(row.ids) - row.start
        if config.text_coef:
            scored = unshared  # the prompt's own text has a loss as well
        sizes.append(unshared * lm.activation_bytes + scored * lm.logits_bytes)
        before = row.ids
    return chunks(sizes, lm.pass_bytes)


def passes(lm: LanguageModel, rows: Sequence[Ids], scored: Sequence[int], most: int) -> list[slice]:
    """Split rows in order into passes of at most `most` rows, and fewer if memory demands it (`lm.pass_bytes`).

    Args:
        rows: tokens to read for each row. The prefix shared with the previous row is read once.
        scored: for each row, the number of tokens whose logits are computed.
    """
    per_read, per_scored = lm.activation_bytes, lm.logits_bytes
    sizes = [len(ids) * per_read + count * per_scored for ids, count in zip(rows, scored, strict=True)]
    if max(sizes, default=0) * most > lm.pass_bytes:  # only here is it worth the time to count what rows share
        shared = (shared_length(*pair) for pair in pairwise([(), *rows]))
        sizes = [size - shared_count * per_read for size, shared_count in zip(sizes, shared, strict=True)]
    slices: list[slice] = []
    for part in chunks(sizes, lm.pass_bytes):
        for start in range(part.start, part.stop, most):
            slices.append(slice(start, min(start + most, part.stop)))
    return slices


# ---- the loss --------------------------------------------------------------------------------------------------------


def completion_logits(lm: LanguageModel, rows: Sequence[Example], share: Share = pack) -> tuple[Tensor, Tensor, Tensor]:
    """Compute logits at the M completion tokens of some rows, concatenated without padding.

    Args:
        share: packing of the rows. `pack` encodes common prefixes once, `no_sharing` encodes every row by itself.

    Returns:
        Logits (M, V) in float32, the hidden states (M, D) they come from, and token ids (M,). Gradients flow.
    """
    if isinstance(lm.backend, Seq2SeqBackend):
        answers = [row.ids[row.start :] for row in rows]
        logits_MV, hidden_MD = lm.backend.continuations([row.ids[: row.start] for row in rows], answers)
        return logits_MV, hidden_MD, torch.tensor(list(chain.from_iterable(answers)), device=lm.device)
    packing = share([row.ids[:-1] for row in rows])
    positions, targets = completion_positions(packing, rows)
    hidden_MD = lm.backend.read(packing, positions)
    return lm.backend.logits(hidden_MD).float(), hidden_MD, torch.tensor(targets, device=lm.device)


def completion_positions(packing: Packing, rows: Sequence[Example]) -> tuple[list[int], list[int]]:
    """Return, for the M completion tokens of packed rows, the positions that predict them, and the tokens."""
    positions, targets = list[int](), list[int]()
    for i, row in enumerate(rows):
        positions += packing.token_indices(i)[
            row.start - 1 :
        ].tolist()  # each token is predicted at the token before it
        targets += row.ids[row.start :]
    return positions, targets


def are_decisions(rows: Rows) -> TypeIs[Sequence[Decision]]:
    """Return whether the rows are decisions among options."""
    return bool(rows) and isinstance(rows[0], Decision)  # a rank may have no rows of a batch


def summed_nll(lm: LanguageModel, rows: Rows, share: Share) -> Tensor:
    """Return the loss (nats), summed over the completion tokens of some rows, or over decisions."""
    if are_decisions(rows):
        return decisions_loss(lm, rows)
    logits_MV, _, targets_M = completion_logits(lm, rows, share)
    return completion_nll(logits_MV, targets_M) * len(targets_M)


def nll_and_text_loss(lm: LanguageModel, rows: Rows, share: Share) -> tuple[Tensor, Tensor]:
    """Return `summed_nll`, and the mean loss over all tokens of the packed blocks that begin a prompt.

    Text that repeats itself ("> go to desk 1", "You arrive at desk 1.") gives a model trained from scratch many more
    occasions than the completions do to learn to copy from its context.
    """
    if are_decisions(rows):
        packing = pack([row.ids for row in rows])
        return decisions_loss(lm, rows), _text_loss(lm, packing, lm.backend.read(packing, "all"))
    packing = share([row.ids[:-1] for row in rows])
    positions, targets = completion_positions(packing, rows)
    hidden_ND = lm.backend.read(packing, "all")
    nll = completion_nll(lm.backend.logits(hidden_ND[positions]).float(), torch.tensor(targets, device=lm.device))
    return nll * len(targets), _text_loss(lm, packing, hidden_ND)


def _text_loss(lm: LanguageModel, packing: Packing, hidden_ND: Tensor) -> Tensor:
    """Return the mean loss over all tokens of blocks that begin a prompt.

    Args:
        hidden_ND: hidden states of all tokens, in the order of the packing's blocks.
    """
    positions, targets, start = list[int](), list[int](), 0
    for block in packing.blocks:
        if block.start == 0:
            positions += range(start, start + len(block.ids) - 1)
            targets += block.ids[1:]
        start += len(block.ids)
    return completion_nll(lm.backend.logits(hidden_ND[positions]).float(), torch.tensor(targets, device=lm.device))


@torch.no_grad()
def evaluate_loss(
    lm: LanguageModel, examples: Rows, batch_size: int, share: Share = no_sharing, team: Team = ALONE
) -> float:
    """Return the mean loss per completion token, or per decision without its further questions (nats).

    Each process of the team computes a part of it.
    """
    if are_decisions(examples):
        examples = [row._replace(further=()) for row in examples]
    tokens = sum(len(row.ids) - row.start for row in examples)
    starts = team.part(range(0, len(examples), batch_size))
    own = sum(float(summed_nll(lm, examples[i : i + batch_size], share)) for i in starts)
    return team.total(own) / tokens


@torch.no_grad()
def evaluate_accuracy(
    lm: LanguageModel, examples: Rows, batch_size: int, share: Share = no_sharing, team: Team = ALONE
) -> float:
    """Return the share of completion tokens that are the model's most probable token, given the tokens before them.

    For decisions, return the share in which the most probable option is one of the best.
    """
    tokens = sum(len(row.ids) - row.start for row in examples)
    right = 0.0
    for i in team.part(range(0, len(examples), batch_size)):
        rows: Rows = examples[i : i + batch_size]
        if are_decisions(rows):
            right += float(decision_nll(lm, rows, pack([row.ids for row in rows]))[1].sum())
        else:
            logits_MV, _, targets_M = completion_logits(lm, rows, share)
            right += float((logits_MV.argmax(-1) == targets_M).sum())
    return team.total(right) / tokens
