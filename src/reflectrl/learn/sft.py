"""Supervised fine-tuning of either player: loss on the completion only, evaluation loss, early stopping.

One linear loop. Departures from the released code of Reflect-RL: completions end with end-of-text, so a reflection
knows where to stop; the prompt is the one that play renders; and only the head rows at completion positions are
computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reflectrl.config import SFTConfig
from reflectrl.episodes import ChoiceRow, ReflectionRow
from reflectrl.learn.checkpoint import (
    load_state,
    optimizer_tensors,
    prefixed,
    restore_optimizer,
    save_state,
    without_prefix,
)
from reflectrl.learn.losses import completion_nll
from reflectrl.learn.optim import make_optimizers, set_rate
from reflectrl.models.lm import LanguageModel
from reflectrl.models.memory import release_memory
from reflectrl.models.packing import Ids, Packing, apart, pack, portions, shared_length
from reflectrl.players.policy import Policy
from reflectrl.prompts import tokenize
from reflectrl.types import UserError, named_seed

ACTIVATIONS = 4 * 2**30
"""About how many bytes of activations a pass keeps for its gradient; a batch that takes more goes in several passes."""

Log = Callable[[dict[str, float]], None]


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


def train_sft(
    lm: LanguageModel,
    train: Sequence[Example],
    validation: Sequence[Example],
    config: SFTConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train `lm` in place; it ends with the weights of the lowest evaluation loss.

    Args:
        log: receives {"step", "loss", "eval_loss"} once per evaluation (losses in nats per token).
        state_folder: where the learner's state is kept between evaluations, so that a killed training goes on.

    Raises:
        UserError: there is nothing to learn from.
    """
    if not train or not validation:
        raise UserError("sft: no training or no validation rows (does the teacher write any for this player?)")
    examined = [validation[i] for i in _spread(_groups(validation, config.by_episode), config.eval_rows)]
    groups, share = _groups(train, config.by_episode), pack if config.by_episode else apart
    parameters = lm.parameters()
    optimizers = make_optimizers(lm, config)
    best_loss, best_weights, stale, step = float("inf"), lm.weights(), 0, 0
    losses: list[float] = []
    if state_folder is not None and (saved := load_state(state_folder)) is not None:
        tensors, meta = saved
        lm.load_weights(without_prefix("weights", tensors))
        best_weights = without_prefix("best", tensors)
        for i, optimizer in enumerate(optimizers):
            restore_optimizer(optimizer, tensors, f"optimizer{i}")
        best_loss, stale, step = meta["best_loss"], meta["stale"], meta["step"]
    batches = _batches(groups, config.batch_size, seed, skip=step)
    while step < config.steps and stale < config.patience:
        torch.manual_seed(named_seed(seed, "dropout", step))  # anew at each step, as after a kill
        set_rate(optimizers, schedule(step, config))
        rows = [train[i] for i in next(batches)]
        tokens = sum(len(row.ids) - row.start for row in rows)
        losses.append(0.0)
        with lm.training():
            for part in _parts(rows, lm, config):
                nll, text = _losses(lm, rows[part], share, config.text_coef > 0)
                loss = nll / tokens + config.text_coef * text * len(rows[part]) / len(rows)
                loss.backward()
                losses[-1] += float(nll.detach()) / tokens
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % config.eval_every and step < config.steps:
            continue
        eval_loss = evaluate_loss(lm, examined, config.batch_size, share)
        release_memory()
        log({"step": step, "loss": sum(losses) / len(losses), "eval_loss": eval_loss})
        losses, stale = [], stale + 1
        if eval_loss < best_loss:
            best_loss, best_weights, stale = eval_loss, lm.weights(), 0
        if state_folder is not None:
            tensors = prefixed("weights", lm.weights()) | prefixed("best", best_weights)
            for i, optimizer in enumerate(optimizers):
                tensors |= optimizer_tensors(optimizer, f"optimizer{i}")
            save_state(state_folder, tensors, {"step": step, "best_loss": best_loss, "stale": stale})
    lm.load_weights(best_weights)


def schedule(step: int, config: SFTConfig) -> float:
    """Share of the peak learning rate at a step (from 0): up linearly, then along a cosine to a tenth."""
    warmup = round(config.warmup * config.steps)
    if step < warmup:
        return step / warmup
    progress = (step - warmup) / max(1, config.steps - warmup)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))


def _parts(rows: Sequence[Example], lm: LanguageModel, config: SFTConfig) -> Iterator[slice]:
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


@torch.no_grad()
def evaluate_loss(
    lm: LanguageModel, examples: Sequence[Example], batch_size: int, share: Callable[[Sequence[Ids]], Packing] = apart
) -> float:
    """Mean loss per completion token (nats)."""
    tokens = sum(len(row.ids) - row.start for row in examples)
    batches = (examples[i : i + batch_size] for i in range(0, len(examples), batch_size))
    return sum(float(_losses(lm, batch, share)[0]) for batch in batches) / tokens


def _losses(
    lm: LanguageModel, rows: Sequence[Example], share: Callable[[Sequence[Ids]], Packing], text: bool = False
) -> tuple[Tensor, Tensor]:
    """Summed loss over the completion tokens of a batch, and the mean loss over the prompts' own tokens if asked for.

    Logits are computed at scored positions only. The rows are packed by `share`: one behind another, or with what they
    have in common once. No token is padding.
    """
    packing = share([row.ids[:-1] for row in rows])
    places = [p for i, row in enumerate(rows) for p in packing.places(i)[row.start - 1 :]]
    hidden_ND = lm.backend.read(packing, "all" if text else places)
    targets_M = torch.tensor([t for row in rows for t in row.ids[row.start :]], device=lm.device)
    logits_MV = lm.logits(hidden_ND[places] if text else hidden_ND).float()
    nll = completion_nll(logits_MV, targets_M) * len(targets_M)
    return nll, _text_loss(lm, packing, hidden_ND) if text else nll.new_zeros(())


def _text_loss(lm: LanguageModel, packing: Packing, hidden_ND: Tensor) -> Tensor:
    """Mean loss of predicting the text itself, in the blocks that begin a prompt (the others go on from a shared one).

    Text that repeats itself ("> go to desk 1", "You arrive at desk 1.") gives a model made from scratch many more
    occasions to learn to look things up in what it has read than the completions do.
    """
    places: list[int] = []
    targets: list[int] = []
    start = 0
    for block in packing.blocks:
        if block.start == 0:
            places += range(start, start + len(block.ids) - 1)
            targets += block.ids[1:]
        start += len(block.ids)
    logits_NV = lm.logits(hidden_ND[places]).float()
    return completion_nll(logits_NV, torch.tensor(targets, device=lm.device))


def _groups(rows: Sequence[Example], by_episode: bool) -> list[range]:
    """Rows in groups: those of one episode, whose history only grows; or each row alone."""
    if not by_episode or not isinstance(rows, Examples):
        return [range(i, i + 1) for i in range(len(rows))]
    texts = rows.histories
    starts = [i for i, text in enumerate(texts) if not (i and texts[i - 1] and text.startswith(texts[i - 1]))]
    return [range(start, end) for start, end in pairwise([*starts, len(texts)])]


def _spread(groups: Sequence[range], most: int) -> list[int]:
    """Rows of whole groups, spread evenly over all groups; `most` rows or a few more."""
    rows = sum(map(len, groups))
    count = max(1, min(len(groups), round(most * len(groups) / rows)))
    return [row for i in range(count) for row in groups[i * len(groups) // count]]


def _batches(groups: Sequence[range], batch_size: int, seed: int, skip: int) -> Iterator[np.ndarray]:
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
