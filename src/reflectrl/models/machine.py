"""Settings of the machine for models: bfloat16 where it is fast, and reuse of freed memory.

Mixed precision: matrix products run in bfloat16 where the hardware is fast at it, and operations that need precision
run in float32. On CPUs, attention stays in float32 while learning (`forward.py`). That is about twice as fast as
float32 throughout. Autocast alone gains nothing.

Memory (glibc's allocator only): each forward pass allocates and frees the same megabytes. If they are returned to the
system, they are mapped again page by page, which costs up to a sixth of the time of playing and learning. If they are
kept for good, batches of varying sizes fragment the heap. So freed memory is kept, and returned now and then.
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
"""Size in bytes from which an allocation gets its own memory mapping. glibc allows no larger value."""

KEPT = 2**31 - 1
"""Free bytes to keep at the end of the heap. `mallopt` takes no larger number."""

ACTIVATIONS = 4 * 2**30
"""`pass_bytes` of devices other than GPUs."""


def pass_bytes(device: torch.device) -> int:
    """Return the approximate bytes of activations that a learner's pass may keep for its gradient.

    Larger batches are split into passes. A GPU takes nearly as long for a small pass as for a large one, so its limit
    is a quarter of its memory.
    """
    if device.type != "cuda":
        return ACTIVATIONS
    return int(torch.cuda.get_device_properties(device).total_memory) // 4


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether bfloat16 matrix products are faster than float32 products, by the device's instructions."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return device.type == "cpu" and bool(processor().bfloat16)


def is_mixed(device: torch.device, mixed: Mixed) -> bool:
    """Return whether matrix products are computed in bfloat16."""
    return mixed == "on" or (mixed == "auto" and has_fast_bfloat16(device))


def autocast(device: torch.device, mixed: Mixed) -> contextlib.AbstractContextManager[Any]:
    """Return the context for a forward pass: bfloat16 autocast, or a null context."""
    return torch.autocast(device.type, torch.bfloat16) if is_mixed(device, mixed) else contextlib.nullcontext()


def keep_memory() -> None:
    """Make the C library's allocator keep freed memory for the next computation."""
    if (set_option := _of_glibc("mallopt")) is not None:
        set_option(MMAP_THRESHOLD, LARGEST)
        set_option(TRIM_THRESHOLD, KEPT)


def release_memory() -> None:
    """Return the allocator's free memory to the system.

    Batches of varying sizes fragment glibc's heap: a training of two million weights held 4 GB after some hundred
    steps, with only 0.8 GB in use. The alternative, a memory mapping for every larger allocation, makes training more
    than half again as slow through page faults.
    """
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


@lru_cache
def _of_glibc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # another C library: macOS, musl, Windows
        return None
