"""Decoding with CUDA graphs: the launches of a pass are recorded once and then replayed by a single call.

A decoding pass of a small model takes a GPU less time than the host needs to launch its kernels. A recorded pass can
only be repeated with the same shapes, on the same memory. So all rows stay in a buffer of fixed size until the last one
has finished, and every row is padded to the tokens that the longest draft needs. On other devices, a pass is not
recorded but simply runs each time, which is how the tests check its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reflectrl.models.attention import Attend, convolved, folded
from reflectrl.models.lookback import Lookback
from reflectrl.models.sharing import KVCache, copy_all

WIDTHS = (1, 5, 17)
"""Numbers of tokens that each row may read in a pass: its last token, and a draft of up to 4 or 16 tokens."""

ROUNDING = 128
"""The number of cells per row is a multiple of this, so that few sizes are recorded."""

SHARE = 8
"""Buffers take at most 1 / `SHARE` of the device's memory. Larger batches are written without graphs."""

Forward = Callable[[Tensor, Tensor, Attend, Lookback | None], Tensor]
"""(ids (N,), positions (N,), attention, short convolutions if the model has any) -> hidden states (N, D)."""


class DecodingGraphs:
    """Recorded decoding passes of a model, and the buffers on which they work.

    Args:
        forward: the model's layers.
        weights: function that returns the model's weights. If any has moved in memory, all recordings are dropped.
    """

    def __init__(self, forward: Forward, weights: Callable[[], Sequence[Tensor]], device: torch.device) -> None:
        self.forward, self.weights, self.device = forward, weights, device
        self.most_bytes = 2**30
        if device.type == "cuda":
            self.most_bytes = torch.cuda.get_device_properties(device).total_memory // SHARE
        self._places: tuple[int, ...] = ()
        self._buffers: dict[int, _Buffer] = {}

    def begin(self, caches: Sequence[KVCache], room: int) -> GraphDecoding | None:
        """Copy caches that hold the rows' prompts into a buffer. Return None if the buffer would be too large.

        Args:
            room: largest number of tokens that a row may add.
        """
        addresses = tuple(weight.data_ptr() for weight in self.weights())
        if addresses != self._places:
            self._buffers, self._places = {}, addresses
        rows = 1 << (len(caches) - 1).bit_length()
        # One more cell, into which padding writes its keys and values.
        cells = max(len(cache.ids) for cache in caches) + room + 1
        buffer = self._buffers.get(rows)
        like, inputs = caches[0].first(1), caches[0].inputs
        if buffer is None or buffer.cells < cells or buffer.dtype != like.dtype:
            cells += -cells % ROUNDING
            token_bytes = like.nbytes if inputs is None else like.nbytes + inputs[0].nbytes
            if rows * cells * token_bytes > self.most_bytes:
                return None
            buffer = None  # frees its memory before the larger one is allocated
            self._buffers.pop(rows, None)
            self._make_room(rows * cells * token_bytes)
            buffer = self._buffers[rows] = _Buffer(rows, cells, like, inputs, self.forward, self.device)
        return GraphDecoding(buffer, caches)

    def _make_room(self, nbytes: int) -> None:
        """Drop the oldest buffers until there is room for a new one."""
        used_bytes = sum(buffer.nbytes for buffer in self._buffers.values())
        for rows in list(self._buffers):
            if used_bytes + nbytes <= self.most_bytes:
                return
            used_bytes -= self._buffers.pop(rows).nbytes


class GraphDecoding:
    """Decoding of a batch by recorded passes, in place of `attention.DecodingAttention`.

    Attributes:
        pairs: visible query-key pairs of the latest pass.
    """

    def __init__(self, buffer: _Buffer, caches: Sequence[KVCache]) -> None:
        self._buffer, self.pairs = buffer, 0
        self.held, self.slots = [len(cache.ids) - 1 for cache in caches], list(range(len(caches)))
        counts = [len(cache.ids) for cache in caches]
        starts = [buffer.whole_RTL2GD[row, :count] for row, count in enumerate(counts)]
        copy_all(starts, [cache.first(count) for cache, count in zip(caches, counts, strict=True)])
        if buffer.inputs_RTLD is not None:
            starts = [buffer.inputs_RTLD[row, :count] for row, count in enumerate(counts)]
            held = [cache.inputs[:count] for cache, count in zip(caches, counts, strict=True)]  # type: ignore[index]
            copy_all(starts, held)

    def read(self, pending: Sequence[Sequence[int]]) -> Tensor:
        """Run a pass in which each row adds its `pending` tokens. Return their hidden states (N, D)."""
        longest = max(map(len, pending))
        wide = next(width for width in WIDTHS if width >= longest)
        spare = self._buffer.cells - 1
        ids_RW = np.zeros((self._buffer.rows, wide), np.int64)
        cells_RW = np.full_like(ids_RW, spare)
        self.pairs = 0
        for slot, length, ids in zip(self.slots, self.held, pending, strict=True):
            ids_RW[slot, : len(ids)] = ids
            cells_RW[slot, : len(ids)] = range(length, length + len(ids))
            self.pairs += len(ids) * length + len(ids) * (len(ids) + 1) // 2
        # Padding sees the first token, since a softmax over none is NaN.
        positions_RW = np.where(cells_RW == spare, 0, cells_RW)
        rows = zip(self.slots, pending, strict=True)
        token_indices = np.concatenate([slot * wide + np.arange(len(ids)) for slot, ids in rows])
        sizes = [ids_RW.size] * 3 + [len(token_indices)]
        joined = np.concatenate([ids_RW.ravel(), cells_RW.ravel(), positions_RW.ravel(), token_indices])
        *inputs, token_indices_N = torch.from_numpy(joined).to(self._buffer.device, non_blocking=True).split(sizes)
        return self._buffer.passes(wide)(torch.stack(inputs))[token_indices_N]

    def keep(self, counts: Sequence[int], stay: Sequence[int]) -> None:
        """Keep the first `counts[row]` tokens that the latest pass added to each row, and continue the rows `stay`."""
        self.held = [self.held[row] + counts[row] for row in stay]
        self.slots = [self.slots[row] for row in stay]


class _Buffer:
    """Keys and values of R rows with T cells each, and the passes recorded for them.

    Args:
        like: keys and values (1, L, 2, G, D) of a token.
        inputs: inputs (T, L, D) of short convolutions, if the model has any.
    """

    def __init__(
        self, rows: int, cells: int, like: Tensor, inputs: Tensor | None, forward: Forward, device: torch.device
    ) -> None:
        self.rows, self.cells, self.dtype, self.device, self.forward = rows, cells, like.dtype, device, forward
        self.inputs_RTLD: Tensor | None = None
        with torch.inference_mode(False):  # tensors made in inference mode could not be changed outside of it
            self.whole_RTL2GD = torch.zeros(rows, cells, *like.shape[1:], dtype=like.dtype, device=device)
            if inputs is not None:
                self.inputs_RTLD = torch.zeros(rows, cells, *inputs.shape[1:], dtype=inputs.dtype, device=device)
        self.nbytes = self.whole_RTL2GD.nbytes + (0 if self.inputs_RTLD is None else self.inputs_RTLD.nbytes)
        self.layers = [*self.whole_RTL2GD.permute(2, 3, 0, 4, 1, 5)]
        self._passes: dict[int, _Pass] = {}

    def passes(self, wide: int) -> _Pass:
        """Return the pass that reads `wide` tokens per row. It is recorded when it is first asked for."""
        if wide not in self._passes:
            self._passes[wide] = _Pass(self, wide)
        return self._passes[wide]


class _Pass:
    """Forward pass over R rows of W tokens each, recorded on a GPU at its first call."""

    def __init__(self, buffer: _Buffer, wide: int) -> None:
        self.buffer, self.wide = buffer, wide
        count = buffer.rows * wide
        with torch.inference_mode(False):
            self.inputs_3N = torch.zeros(3, count, dtype=torch.long, device=buffer.device)
            self.row_N = torch.arange(buffer.rows, device=buffer.device).repeat_interleave(wide)
            self.cell_T = torch.arange(buffer.cells, device=buffer.device)
        self._graph: Any = None
        self._hidden_ND = Tensor()

    def __call__(self, inputs_3N: Tensor) -> Tensor:
        """Run the pass. Return hidden states (N, D), which the next pass may overwrite.

        Args:
            inputs_3N: ids, cells and positions of all tokens, those of padding included.
        """
        self.inputs_3N.copy_(inputs_3N)
        if self.buffer.device.type != "cuda":
            return self._run()
        if self._graph is None:
            self._record()
        self._graph.replay()
        return self._hidden_ND

    def _run(self) -> Tensor:
        ids_N, self._cell_N, self._position_N = self.inputs_3N
        self._later_RWT = self.cell_T > self._position_N.view(-1, self.wide, 1)
        self._mask_RQT: Tensor | None = None
        lookback = None if self.buffer.inputs_RTLD is None else self._convolve
        return self.buffer.forward(ids_N, self._position_N, self._attend, lookback)

    def _convolve(self, layer: int, weight_D1K: Tensor, x_ND: Tensor) -> Tensor:
        assert self.buffer.inputs_RTLD is not None
        inputs_RTD = self.buffer.inputs_RTLD[:, :, layer]
        inputs_RTD[self.row_N, self._cell_N] = x_ND.to(inputs_RTD.dtype)
        return convolved(weight_D1K, x_ND, inputs_RTD, self.row_N, self._cell_N)

    def _attend(self, layer: int, query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, *_: object) -> Tensor:
        keys, values = self.buffer.layers[layer]
        keys[self.row_N, :, self._cell_N] = key_NGD
        values[self.row_N, :, self._cell_N] = value_NGD
        if self._mask_RQT is None:  # the same in every layer
            mask_RWT = query_NHD.new_zeros(self._later_RWT.shape).masked_fill_(self._later_RWT, -torch.inf)
            self._mask_RQT = mask_RWT.repeat(1, query_NHD.shape[1] // key_NGD.shape[1], 1)
        query_RWHD = query_NHD.unflatten(0, (-1, self.wide))
        return folded(query_RWHD, keys, values, self._mask_RQT).flatten(0, 1)

    def _record(self) -> None:
        """Record the pass. It runs once beforehand, so that libraries do their setup, which must not be recorded."""
        # Autocast frees its cached casts of the weights after its block, while the recording would still read them.
        cache_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._run()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._hidden_ND = self._run()
        finally:
            torch.set_autocast_cache_enabled(cache_enabled)
