"""What this process keeps of the machine's memory between computations on CPUs (glibc's allocator; others do nothing).

Each forward pass takes and frees the same megabytes. Given back to the system, they come back page by page, which costs
up to a sixth of playing and learning; kept for good, batches of ever changing sizes leave the heap in pieces. So
freed memory is kept, and given back now and then.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, as malloc.h numbers them."""

LARGEST = 32 * 2**20
"""Bytes from which a piece of memory is a mapping of its own; glibc allows no more."""

KEPT = 2**31 - 1
"""Free bytes at the heap's end that are kept; `mallopt` takes no larger number."""


def keep_memory() -> None:
    """Let the C library's allocator keep what is freed, for the next computation."""
    set_option = _of_glibc("mallopt")
    if set_option is not None:
        set_option(MMAP_THRESHOLD, LARGEST)
        set_option(TRIM_THRESHOLD, KEPT)


def release_memory() -> None:
    """Return what the C library's allocator holds free.

    Batches of ever changing sizes leave glibc's heap in pieces that it keeps: a training of two million weights held
    4 GB after some hundred steps, of which 0.8 were in use. Having all larger pieces mapped apart instead costs more
    than half of the training's time again in page faults.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


@lru_cache
def _of_glibc(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # another C library: macOS, musl, Windows
        return None
