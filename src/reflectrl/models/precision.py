"""Mixed precision for training: matrix products in bfloat16 where the hardware has it, everything delicate in float32.

On CPUs, attention stays in float32 while learning (`forward.py`): about twice as fast as float32 throughout, where
autocast alone gains nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch

Mixed = Literal["auto", "on", "off"]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 ones on this device."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu":
        return False
    known = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(supported() for supported in known if supported is not None)


def is_mixed(device: torch.device, mixed: Mixed) -> bool:
    """Whether matrix products are computed in bfloat16."""
    return mixed == "on" or (mixed == "auto" and has_fast_bfloat16(device))


def autocast(device: torch.device, mixed: Mixed) -> contextlib.AbstractContextManager[Any]:
    """The context in which a forward pass runs: bfloat16 autocast, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if is_mixed(device, mixed) else contextlib.nullcontext()
