"""Attention of many short texts after one prompt, on CPUs.

Each token of such a text sees the prompt and its own text. In a mask over all tokens of all texts, only one entry in a
hundred would be visible, so the two parts are attended separately: all texts together to the prompt, and every text to
itself. The two results are weighted by their softmax totals, as in ring attention (Liu et al. 2023). The weighted sum
is exactly the attention over both parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from reflectrl.models.text_scoring import Trie

WORTH_BRANCHING = 96
"""Smallest number of tokens for which this is faster than attention with a mask."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
"""Torch's fused attention for CPUs. Unlike the public function, it also returns the softmax totals."""


@dataclass(frozen=True)
class Texts:
    """Nodes of a trie as cells: a row per text, padded to the longest.

    Attributes:
        node_BS: node in each cell. Padding repeats a text's last node.
        cell_N: one cell of each node, among the B · S cells.
    """

    node_BS: Tensor
    cell_N: Tensor


def texts_of(trie: Trie) -> Texts:
    """Arrange a trie's nodes in rows. Texts without a node are left out."""
    paths = [path for path in trie.paths if path]
    longest = max(map(len, paths))
    node_BS = np.array([(*path, *path[-1:] * (longest - len(path))) for path in paths])
    cell_N = np.empty(len(trie.ids), np.int64)
    # Written from the last cell to the first, so that each node keeps its first cell, which is never padding.
    cell_N[node_BS.ravel()[::-1]] = np.arange(node_BS.size)[::-1]
    return Texts(torch.from_numpy(node_BS), torch.from_numpy(cell_N))


def attend_texts(
    query_NHD: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    texts: Texts,
    wanted: Tensor | None = None,
) -> Tensor:
    """Return the results (N, H · D) of attention for the nodes of a trie.

    Args:
        query_NHD: queries of all nodes, or of the `wanted` ones only.
        prompt: keys and values (1, G, T, D) of the tokens before the texts.
        own: keys and values (1, G, N, D) of the nodes.
        wanted: indices of the nodes whose results are needed; None for all.
    """
    rows, longest = texts.node_BS.shape
    if wanted is None:
        cells_CHD = query_NHD.index_select(0, texts.node_BS.ravel())
        out_CHD = _attend(cells_CHD.unflatten(0, (rows, longest)), prompt, own, texts.node_BS, None)
        return out_CHD.index_select(0, texts.cell_N).flatten(1)
    cell_W = texts.cell_N[wanted]
    if len(wanted) > rows:  # a row per wanted node would take more memory than all cells
        every_CHD = query_NHD.new_zeros(rows * longest, *query_NHD.shape[1:]).index_put((cell_W,), query_NHD)
        out_CHD = _attend(every_CHD.unflatten(0, (rows, longest)), prompt, own, texts.node_BS, None)
        return out_CHD.index_select(0, cell_W).flatten(1)
    later_WS = torch.arange(longest) > (cell_W % longest)[:, None]
    mask_WS = query_NHD.new_zeros(later_WS.shape).masked_fill_(later_WS, -torch.inf)
    return _attend(query_NHD[:, None], prompt, own, texts.node_BS[cell_W // longest], mask_WS).flatten(1)


def _attend(
    query_BSHD: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    node_BK: Tensor,
    mask_BK: Tensor | None,
) -> Tensor:
    """Return the results (B · S, H, D) for rows of queries.

    Args:
        node_BK: nodes that a row sees.
        mask_BK: mask for rows of one query; None if the queries of a row are the nodes that it sees, in order.
    """
    rows, width, heads, _ = query_BSHD.shape
    group = heads // own[0].shape[1]
    key_BGKD, value_BGKD = (
        part[0].index_select(1, node_BK.ravel()).unflatten(1, node_BK.shape).transpose(0, 1) for part in own
    )
    if group > 1:  # queries that share a key head become further rows
        key_BGKD, value_BGKD = key_BGKD.repeat(group, 1, 1, 1), value_BGKD.repeat(group, 1, 1, 1)
        mask_BK = None if mask_BK is None else mask_BK.repeat(group, 1)
    query_BGSD = query_BSHD.unflatten(2, (-1, group)).permute(3, 0, 2, 1, 4).flatten(0, 1)
    mask = None if mask_BK is None else mask_BK[:, None, None]
    out_BGSD: Tensor = _TwoParts.apply(query_BGSD, *prompt, key_BGKD, value_BGKD, mask)
    out_RBGSD = out_BGSD.unflatten(0, (group, rows))
    return out_RBGSD.permute(1, 3, 2, 0, 4).reshape(rows * width, heads, -1)


class _TwoParts(torch.autograd.Function):
    """Attention of rows of queries (B, G, S, D) to a prompt that all rows see, and to each row's own keys."""

    @staticmethod
    def forward(
        ctx: Any,
        query_BGSD: Tensor,
        prompt_key_1GTD: Tensor,
        prompt_value_1GTD: Tensor,
        key_BGKD: Tensor,
        value_BGKD: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Attend.

        Args:
            mask: additive mask (B, 1, 1, K) of a row's own keys; None if they are the queries' tokens in order.
        """
        rows = len(query_BGSD)
        prompt_out_1GQD, total_1GQ = _flash(_together(query_BGSD), prompt_key_1GTD, prompt_value_1GTD)
        own_out_BGSD, own_total_BGS = _flash(query_BGSD, key_BGKD, value_BGKD, 0.0, mask is None, attn_mask=mask)
        prompt_out_BGSD, total_BGS = _by_row(prompt_out_1GQD, rows), _by_row(total_1GQ[..., None], rows)[..., 0]
        share_BGS1 = (total_BGS - own_total_BGS).sigmoid()[..., None].to(own_out_BGSD.dtype)
        out_BGSD: Tensor = torch.lerp(own_out_BGSD, prompt_out_BGSD, share_BGS1)
        saved = (query_BGSD, prompt_key_1GTD, prompt_value_1GTD, key_BGKD, value_BGKD, out_BGSD)
        ctx.save_for_backward(*saved, torch.logaddexp(total_BGS, own_total_BGS), mask)
        return out_BGSD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of both parts. The kernels need only the combined results and softmax totals."""
        query_BGSD, prompt_key, prompt_value, key_BGKD, value_BGKD, out_BGSD, total_BGS, mask = ctx.saved_tensors
        [grad_BGSD] = gradients
        query, grad, out = (_together(part) for part in (query_BGSD, grad_BGSD, out_BGSD))
        total = _together(total_BGS[..., None])[..., 0].contiguous()
        prompt_grad_1GQD, *of_prompt = _flash_backward(grad, query, prompt_key, prompt_value, out, total, 0.0, False)
        own_grad_BGSD, *of_own = _flash_backward(
            grad_BGSD.contiguous(),
            query_BGSD,
            key_BGKD,
            value_BGKD,
            out_BGSD,
            total_BGS.contiguous(),
            0.0,
            mask is None,
            attn_mask=mask,
        )
        return own_grad_BGSD + _by_row(prompt_grad_1GQD, len(query_BGSD)), *of_prompt, *of_own, None


def _together(part_BGSD: Tensor) -> Tensor:
    """Concatenate the queries of all rows: (B, G, S, D) -> (1, G, B · S, D)."""
    return part_BGSD.transpose(0, 1).flatten(1, 2)[None]


def _by_row(part_1GQD: Tensor, rows: int) -> Tensor:
    """Undo `_together`."""
    return part_1GQD[0].unflatten(1, (rows, -1)).transpose(0, 1)
