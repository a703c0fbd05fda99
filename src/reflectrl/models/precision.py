"""Mixed precision for training: matrix products in bfloat16 where the hardware has it, everything delicate in float32.

On CPUs, torch's fused attention is slower backwards in bfloat16 than in float32, so attention stays in float32 there:
about twice as fast as float32 throughout, where autocast alone gains nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

FLOAT32_ATTENTION = "sdpa_float32"

Mixed = Literal["auto", "on", "off"]


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    with torch.autocast(query.device.type, enabled=False):
        dtype = module_dtype(module)
        return sdpa_attention_forward(module, query.to(dtype), key.to(dtype), value.to(dtype), mask, **options)


def module_dtype(module: torch.nn.Module) -> torch.dtype:
    """The dtype of a module's weights."""
    return next(module.parameters()).dtype


AttentionInterface.register(FLOAT32_ATTENTION, _attention)
AttentionMaskInterface.register(FLOAT32_ATTENTION, sdpa_mask)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 ones on this device."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu":
        return False
    known = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(supported() for supported in known if supported is not None)


def autocast(device: torch.device, mixed: Mixed) -> contextlib.AbstractContextManager[Any]:
    """The context in which a training forward pass runs: bfloat16 autocast, or nothing."""
    wanted = mixed == "on" or (mixed == "auto" and has_fast_bfloat16(device))
    return torch.autocast(device.type, torch.bfloat16) if wanted else contextlib.nullcontext()
