"""What models ask of the machine: bfloat16 where it is fast, and memory that is kept between computations.

Mixed precision: matrix products in bfloat16 where the hardware has it, everything delicate in float32. On CPUs,
attention stays in float32 while learning (`forward.py`): about twice as fast as float32 throughout, where autocast
alone gains nothing.

Memory (glibc's allocator; others do nothing): each forward pass takes and frees the same megabytes. Given back to the
system, they come back page by page, which costs up to a sixth of playing and learning; kept for good, batches of ever
changing sizes leave the heap in pieces. So freed memory is kept, and given back now and then.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import lru_cache
from typing import Any, Literal

import torch

from reflectrl.models.processor import processor

Mixed = Literal["auto", "on", "off"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, as malloc.h numbers them."""

LARGEST = 32 * 2**20
"""Bytes from which a piece of memory is a mapping of its own; glibc allows no more."""

KEPT = 2**31 - 1
"""Free bytes at the heap's end that are kept; `mallopt` takes no larger number."""


def has_fast_bfloat16(device: torch.device) -> bool:
    """Tell from a device's instructions whether products in bfloat16 are faster than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return device.type == "cpu" and bool(processor().bfloat16)


def is_mixed(device: torch.device, mixed: Mixed) -> bool:
    """Whether matrix products are computed in bfloat16."""
    return mixed == "on" or (mixed == "auto" and has_fast_bfloat16(device))


def autocast(device: torch.device, mixed: Mixed) -> contextlib.AbstractContextManager[Any]:
    """The context in which a forward pass runs: bfloat16 autocast, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if is_mixed(device, mixed) else contextlib.nullcontext()


def keep_memory() -> None:
    """Let the C library's allocator keep what is freed, for the next computation."""
    if (set_option := _of_glibc("mallopt")) is not None:
        set_option(MMAP_THRESHOLD, LARGEST)
        set_option(TRIM_THRESHOLD, KEPT)


def release_memory() -> None:
    """Return what the C library's allocator holds free.

    Batches of ever changing sizes leave glibc's heap in pieces that it keeps: a training of two million weights held
    4 GB after some hundred steps, of which 0.8 were in use. Having all larger pieces mapped apart instead costs more
    than half of the training's time again in page faults.
    """
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


@lru_cache
def _of_glibc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # another C library: macOS, musl, Windows
        return None
