"""Short convolutions over packed tokens: each token looks back at the tokens before it on its own path.

In a packed pass, the token before another one may stand elsewhere (where its branch leaves a shared prefix, or at its
parent in a trie), or only in a KV cache. Nearly always, however, it is simply the previous row. So the convolution is
computed for the previous rows, and then again for the few rows for which that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reflectrl.models.attention import to_device
from reflectrl.models.sharing import Block, KVCache


class Lookback(Protocol):
    """Convolutions of a pass, for all its layers."""

    def __call__(self, layer: int, weight_D1K: Tensor, x_ND: Tensor) -> Tensor:
        """Return the tokens (N, D) plus the weighted sums of themselves and of the tokens before them.

        Args:
            weight_D1K: as in `torch.nn.Conv1d`. The last of the K taps is for the token itself.
        """


class PassLookback:
    """Convolutions of a pass over blocks of tokens.

    Args:
        blocks: the blocks of the pass, as for `attention.BlockAttention`.
        caches: the KV cache of each block, which holds the tokens before it; None if the pass computes all tokens.
        taps: number of tokens that a convolution sees, K.
    """

    def __init__(
        self, blocks: Sequence[Block], caches: Sequence[KVCache] | None, taps: int, device: torch.device
    ) -> None:
        self.blocks, self.caches = blocks, caches
        self._inputs: list[Tensor] = []
        """Inputs (N, D) of the layers so far, if caches will hold them."""
        self._tails_TLD = _tails(blocks, caches, taps)
        """The last tokens in the caches, before the blocks."""
        tails = 0 if self._tails_TLD is None else len(self._tails_TLD)
        rows_F, sources_FK = _exceptions(blocks, caches is not None, taps, tails)
        self._rows_F, sources = to_device(device, rows_F, sources_FK.ravel())
        self._sources_FK = sources.view(-1, taps - 1)

    def __call__(self, layer: int, weight_D1K: Tensor, x_ND: Tensor) -> Tensor:
        """See `Lookback`."""
        if self.caches is not None:
            self._inputs.append(x_ND)
        tails_TD = None if self._tails_TLD is None else self._tails_TLD[:, layer].to(x_ND.dtype)
        y_ND: Tensor = _Convolution.apply(x_ND, weight_D1K, tails_TD, self._rows_F, self._sources_FK)
        return y_ND

    def keep(self) -> None:
        """Append the inputs of all layers to the caches, except for tries."""
        if self.caches is None:
            return
        inputs_NLD = torch.stack(self._inputs, 1)
        parts = inputs_NLD.split([len(block.ids) for block in self.blocks])
        for block, cache, part_SLD in zip(self.blocks, self.caches, parts, strict=True):
            if block.trie is None:
                cache.append_inputs(block.start, part_SLD)


def _tails(blocks: Sequence[Block], caches: Sequence[KVCache] | None, taps: int) -> Tensor | None:
    """Return the last `taps - 1` tokens before each block in its cache, (blocks · (taps - 1), L, D); None if none."""
    if caches is None or not any(block.start and not block.context for block in blocks):
        return None
    like = next(cache.inputs for cache in caches if cache.inputs is not None)
    count, parts = taps - 1, list[Tensor]()
    for block, cache in zip(blocks, caches, strict=True):
        length = 0 if block.context else min(count, block.start)
        if length < count:
            parts.append(like.new_zeros(count - length, *like.shape[1:]))
        if length:
            assert cache.inputs is not None
            parts.append(cache.inputs[block.start - length : block.start])
    return torch.cat(parts)


def _exceptions(blocks: Sequence[Block], cached: bool, taps: int, tails: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the tokens (F,) whose path is not that of the previous rows, and the K - 1 tokens before each.

    The second result (F, K - 1) counts 0 for no token, then the tails, then the tokens of the pass.
    """
    starts = [*accumulate((len(block.ids) for block in blocks), initial=0)]
    first = 1 + tails
    before_P = np.zeros(first + starts[-1], np.int64)
    """The token before each one, in the same count."""
    for i in range(tails):
        if i % (taps - 1):
            before_P[1 + i] = i
    for i, block in enumerate(blocks):
        start, count = first + starts[i], len(block.ids)
        if block.context:
            earlier, length = block.context[-1]
            last = first + starts[earlier] + length - 1
        else:  # the last token of its tail, if tokens before it are in a cache
            last = (taps - 1) * (i + 1) if block.start and cached else 0
        own_N = before_P[start : start + count]
        own_N[:] = np.arange(start - 1, start + count - 1)
        own_N[0] = last
        if block.trie is not None:
            parents_N = np.asarray(block.trie.parents)
            own_N[:] = np.where(parents_N >= 0, start + parents_N, last)
    rows_N = np.arange(first, len(before_P))
    sources_NK, is_exception_N, source_N = list[np.ndarray](), np.zeros(len(rows_N), bool), rows_N
    for distance in range(1, taps):
        source_N = before_P[source_N]
        sources_NK.append(source_N)
        # The first rows have no previous ones, and count as zeros there.
        plain_N = np.where(rows_N - distance >= first, rows_N - distance, 0)
        is_exception_N |= source_N != plain_N
    rows_F = np.flatnonzero(is_exception_N)
    return rows_F, np.stack(sources_NK, 1)[rows_F]


class _Convolution(torch.autograd.Function):
    """Convolution over the previous rows, computed anew for the exceptions."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_D1K: Tensor, tails_TD: Tensor | None, rows_F: Tensor, sources_FK: Tensor
    ) -> Tensor:
        """Return `x_ND` plus the weighted sums. See `_exceptions` for the last two arguments."""
        weight_KD = weight_D1K[:, 0].t().flip(0).to(x_ND.dtype)
        y_ND = x_ND * (1 + weight_KD[0])
        for distance in range(1, min(len(weight_KD), len(x_ND))):
            y_ND[distance:].addcmul_(x_ND[:-distance], weight_KD[distance])
        before_FKD = None
        if len(rows_F):
            before_FKD = _gathered(x_ND, tails_TD, sources_FK)
            y_ND[rows_F] = x_ND[rows_F] * (1 + weight_KD[0]) + (before_FKD * weight_KD[1:]).sum(1)
        ctx.tails = 0 if tails_TD is None else len(tails_TD)
        ctx.save_for_backward(x_ND, weight_KD, rows_F, sources_FK, before_FKD)
        return y_ND

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tokens and of the weights."""
        x_ND, weight_KD, rows_F, sources_FK, before_FKD = ctx.saved_tensors
        [grad_ND] = gradients
        grad_x_ND = grad_ND * (1 + weight_KD[0])
        grad_weight_KD = torch.zeros_like(weight_KD)
        grad_weight_KD[0] = (grad_ND * x_ND).sum(0)
        plain_ND = grad_ND
        if len(rows_F):
            plain_ND = grad_ND.index_fill(0, rows_F, 0.0)
        for distance in range(1, min(len(weight_KD), len(x_ND))):
            grad_x_ND[:-distance].addcmul_(plain_ND[distance:], weight_KD[distance])
            grad_weight_KD[distance] = (plain_ND[distance:] * x_ND[:-distance]).sum(0)
        if len(rows_F):
            grad_FD = grad_ND[rows_F]
            grad_weight_KD[1:] += (grad_FD[:, None] * before_FKD).sum(0)
            token_FK = sources_FK - 1 - ctx.tails
            for tap in range(token_FK.shape[1]):
                # Rows of tails and of no token at all add nothing, to a token of the pass that takes it.
                is_token_F1 = (token_FK[:, tap] >= 0)[:, None]
                added_FD = grad_FD * weight_KD[1 + tap] * is_token_F1
                grad_x_ND.index_add_(0, token_FK[:, tap].clamp(min=0), added_FD)
        return grad_x_ND, grad_weight_KD.flip(0).t()[:, None], None, None, None


def _gathered(x_ND: Tensor, tails_TD: Tensor | None, sources_FK: Tensor) -> Tensor:
    """Return the tokens (F, K - 1, D) before the exceptions: of the pass, of the tails, or zeros."""
    tails = 0 if tails_TD is None else len(tails_TD)
    token_FK = sources_FK - 1 - tails
    before_FKD = x_ND[token_FK.clamp(min=0)] * (token_FK >= 0)[..., None]
    if tails_TD is not None:
        is_tail_FK = (sources_FK > 0) & (token_FK < 0)
        before_FKD = torch.where(is_tail_FK[..., None], tails_TD[(sources_FK - 1).clamp(0, tails - 1)], before_FKD)
    return before_FKD
