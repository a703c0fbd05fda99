"""Short convolutions over packed tokens: each token looks back at the tokens before it on its own path.

In a packed pass, the token before another one may stand elsewhere (where its branch leaves a shared prefix, or at its
parent in a trie), or only in a KV cache. So the tokens before each one are gathered by their indices.
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
        self._sources_KN = to_device(device, *_sources(blocks, caches is not None, taps, tails))

    def __call__(self, layer: int, weight_D1K: Tensor, x_ND: Tensor) -> Tensor:
        """See `Lookback`."""
        if self.caches is not None:
            self._inputs.append(x_ND)
        before = [x_ND.new_zeros(1, x_ND.shape[1])]
        if self._tails_TLD is not None:
            before.append(self._tails_TLD[:, layer].to(x_ND.dtype))
        y_ND: Tensor = _Convolution.apply(x_ND, weight_D1K, torch.cat(before), self._sources_KN)
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


def _sources(blocks: Sequence[Block], cached: bool, taps: int, tails: int) -> list[np.ndarray]:
    """Return the token 1, 2, ... `taps - 1` steps before each token of the pass, as arrays (N,).

    They count 0 for no token, then the tails, then the tokens of the pass.
    """
    starts = [*accumulate((len(block.ids) for block in blocks), initial=0)]
    first = 1 + tails
    before_P = np.arange(-1, first + starts[-1] - 1)
    """The token before each one, in the same count: the previous one, except where a tail or a block begins."""
    before_P[0] = before_P[1] = 0
    before_P[1 : first : taps - 1] = 0
    for i, block in enumerate(blocks):
        start, count = first + starts[i], len(block.ids)
        if block.context:
            earlier, length = block.context[-1]
            last = first + starts[earlier] + length - 1
        else:  # the last token of its tail, if tokens before it are in a cache
            last = (taps - 1) * (i + 1) if block.start and cached else 0
        before_P[start] = last
        if block.trie is not None:
            parents_N = np.asarray(block.trie.parents)
            before_P[start : start + count] = np.where(parents_N >= 0, start + parents_N, last)
    sources = [before_P[first:]]
    for _ in range(2, taps):
        sources.append(before_P[sources[-1]])
    return sources


class _Convolution(torch.autograd.Function):
    """The convolution, whose gradient needs the tokens only and not what was gathered."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_D1K: Tensor, before_PD: Tensor, sources_KN: Sequence[Tensor]) -> Tensor:
        """Return `x_ND` plus the weighted sums.

        Args:
            before_PD: no token (zeros), and the tails.
            sources_KN: see `_sources`.
        """
        weight_KD = weight_D1K[:, 0].t().flip(0).to(x_ND.dtype).contiguous()
        pool_MD = torch.cat([before_PD, x_ND])
        y_ND = x_ND * (1 + weight_KD[0])
        for source_N, weight_D in zip(sources_KN, weight_KD[1:], strict=True):
            y_ND[: len(source_N)].addcmul_(pool_MD.index_select(0, source_N), weight_D)
        ctx.save_for_backward(pool_MD, weight_KD, *sources_KN)
        return y_ND

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tokens and of the weights."""
        pool_MD, weight_KD, *sources_KN = ctx.saved_tensors
        [grad_ND] = gradients
        first = len(pool_MD) - len(grad_ND)
        grad_pool_MD = torch.zeros_like(pool_MD)
        grad_pool_MD[first:] = grad_ND * (1 + weight_KD[0])
        grad_weights = [(grad_ND * pool_MD[first:]).sum(0)]
        for source_N, weight_D in zip(sources_KN, weight_KD[1:], strict=True):
            own_ND = grad_ND[: len(source_N)]
            grad_pool_MD.index_add_(0, source_N, own_ND * weight_D)
            grad_weights.append((own_ND * pool_MD.index_select(0, source_N)).sum(0))
        return grad_pool_MD[first:], torch.stack(grad_weights).flip(0).t()[:, None], None, None
