"""Sampling of rows in offline learning: torch samplers for one epoch, and an endless stream of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from reflectrl.core.types import UserError, named_seed

Sampling = Literal["none", "good_priority", "good_random", "all_priority"]


def make_sampler(sampling: Sampling, weights_N: Tensor, generator: torch.Generator) -> Sampler[int]:
    """Return a sampler of row indices. An epoch has as many draws as there are rows that can be drawn.

    "none" shuffles all rows. "good_priority" draws in proportion to the weight, with replacement. Rows of weight 0 are
    never drawn; since the loss is weighted as well, a row counts with its squared weight. "good_random" shuffles the
    rows of positive weight. "all_priority" draws as "good_priority" does; its rows include rejected answers.

    Args:
        weights_N: signed weight of each row, (N,). Only "none" draws rows of negative weight.

    Raises:
        UserError: no row can be drawn.
    """
    if sampling == "none":
        return RandomSampler(range(len(weights_N)), generator=generator)
    weights_N = weights_N.clamp_min(0)
    good = torch.nonzero(weights_N)[:, 0].tolist()
    if not good:
        raise UserError("offline: no completion has a positive weight (reward or advantage), so nothing can be drawn")
    if sampling == "good_random":
        return SubsetRandomSampler(good, generator=generator)
    return WeightedRandomSampler(weights_N.double().tolist(), len(good), generator=generator)


def scaled_steps(steps: int, sampling: Sampling, weights_N: Tensor, imitable: int = 0) -> int:
    """Scale the optimiser steps by the share of rows with positive weight, if only those rows are drawn.

    Args:
        imitable: number of rows that are worth imitating, to which the share relates; 0 means all. As in the released
            code, the share may exceed 1 if rejected answers are drawn as well.
    """
    if sampling == "none":
        return steps
    return max(1, round(steps * int((weights_N > 0).sum()) / (imitable or len(weights_N))))


def batches(sampling: Sampling, weights_N: Tensor, batch_size: int, seed: int, skip: int = 0) -> Iterator[list[int]]:
    """Yield batches of row indices without end. Each epoch has its own generator, and its last batch may be smaller.

    Args:
        skip: number of batches to leave out at the start, to resume a training.
    """
    epoch = batch_count = 0
    while True:
        generator = torch.Generator().manual_seed(named_seed(seed, "epoch", epoch))
        for batch in BatchSampler(make_sampler(sampling, weights_N, generator), batch_size, drop_last=False):
            batch_count += 1
            if batch_count > skip:
                yield batch
        epoch += 1
