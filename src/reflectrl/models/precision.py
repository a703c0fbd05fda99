"""Mixed precision for training: matrix products in bfloat16 where the hardware has it, everything delicate in float32.

On CPUs, attention stays in float32 while learning (`forward.py`): about twice as fast as float32 throughout, where
autocast alone gains nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch

Mixed = Literal["auto", "on", "off"]

FASTER = 1.2
"""How many times as fast bfloat16 has to be; where it is worth anything, it is about twice."""


@lru_cache
def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 ones on this device.

    On CPUs that have instructions for it they are timed, once: some Intel processors do, and take nearly twice as long.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type != "cpu":
        return False
    known = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    if not any(supported() for supported in known if supported is not None):
        return False
    return FASTER * _product_seconds(torch.bfloat16) < _product_seconds(torch.float32)


def _product_seconds(dtype: torch.dtype) -> float:
    """The shortest time of a product as a small model has it."""
    x_ND, weight_OD = torch.ones(512, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
    with torch.autocast("cpu", enabled=False):
        return shortest_seconds(lambda: torch.nn.functional.linear(x_ND, weight_OD))


def shortest_seconds(compute: Callable[[], Any]) -> float:
    """The shortest time that something takes, of six."""
    taken = []
    for _ in range(6):  # the first one prepares
        start = time.perf_counter()
        compute()
        taken.append(time.perf_counter() - start)
    return min(taken)


def is_mixed(device: torch.device, mixed: Mixed) -> bool:
    """Whether matrix products are computed in bfloat16."""
    return mixed == "on" or (mixed == "auto" and has_fast_bfloat16(device))


def autocast(device: torch.device, mixed: Mixed) -> contextlib.AbstractContextManager[Any]:
    """The context in which a forward pass runs: bfloat16 autocast, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if is_mixed(device, mixed) else contextlib.nullcontext()
