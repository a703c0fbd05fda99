"""Forward passes through Hugging Face's own layers, with our attention plugged in through the library's interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from reflectrl.core.types import UserError
from reflectrl.models.attention import Attend
from reflectrl.models.canon import looking_back
from reflectrl.models.lookback import Lookback
from reflectrl.models.plain import body_of

ATTENTION = "reflectrl"
"""The name under which our attention is registered with transformers."""

_attend: ContextVar[Attend | None] = ContextVar("attend", default=None)
"""Attention of the current forward pass; None for the library's."""


def hf_forward(
    core: Any, ids_N: Tensor, positions_N: Tensor, attend: Attend, lookback: Lookback | None = None
) -> Tensor:
    """Return hidden states (N, D) of the last layer, from Hugging Face's layers with our attention.

    See `forward.hidden_states`.

    Raises:
        UserError: the model's code does not use the library's attention interface.
    """
    if core.config._attn_implementation != ATTENTION:
        try:
            core.set_attn_implementation(ATTENTION)
        except (ValueError, AttributeError) as error:
            raise _own_attention(core.config.model_type) from error
    mask_1111 = ids_N.new_ones(1, 1, 1, 1, dtype=torch.bool)  # a finished mask, so that the library makes none
    layers: list[int] = []

    def noted(layer: int, *rest: Any) -> Tensor:
        layers.append(layer)
        return attend(layer, *rest)

    with attending(noted), looking_back(lookback):
        output = body_of(core)(
            input_ids=ids_N[None], position_ids=positions_N[None], attention_mask=mask_1111, use_cache=False
        )
    if layers != [*range(core.config.get_text_config().num_hidden_layers)]:  # the library has used its own attention
        raise _own_attention(core.config.model_type)
    return output.last_hidden_state[0]


@contextmanager
def attending(attend: Attend | None) -> Iterator[None]:
    """Make layers use this attention within the block; None means the library's."""
    token = _attend.set(attend)
    try:
        yield
    finally:
        _attend.reset(token)


def present_attention() -> Attend | None:
    """Return the attention in use now; None outside of a packed pass."""
    return _attend.get()


def _own_attention(family: str) -> UserError:
    return UserError(f"models of the family {family!r} use their own attention, which cannot be packed")


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Any:
    """Compute attention for Hugging Face's layers: ours within a packed forward pass, otherwise the library's."""
    attend = _attend.get()
    if attend is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise _own_attention(module.config.model_type)
    scaling = options.get("scaling")
    usual = query.shape[-1] ** -0.5  # our attention always scales by this, so another scale goes into the queries
    if scaling is not None and abs(scaling - usual) > 1e-9:
        query = query * (scaling / usual)
    parts = (part[0].transpose(0, 1) for part in (query, key, value))
    mixed_ND = attend(module.layer_idx, *parts, options.get("dropout", 0.0))
    return mixed_ND.view(1, query.shape[2], query.shape[1], -1), None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
