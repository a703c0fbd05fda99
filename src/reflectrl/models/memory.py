"""Measuring available memory, and refusing models that do not fit before they are loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.sources import files_of
from reflectrl.models.weights import GIB, shapes_of, weight_bytes

if TYPE_CHECKING:
    import torch


def available() -> float:
    """Return the bytes of memory that this process can still get, given the machine, its control group and `ulimit -v`.

    Infinite if the system does not say.
    """
    return min(_of_machine(), _of_process())


def _of_process() -> float:
    """Return the bytes of address space that the process's limit leaves."""
    try:
        lines = Path("/proc/self/limits").read_text(encoding="ascii").splitlines()
        limit = next(line for line in lines if line.startswith("Max address space")).split()[3]
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        return float(int(limit) - used) if limit.isdecimal() else float("inf")
    except (OSError, StopIteration, ValueError, IndexError):
        return float("inf")


def _of_machine() -> float:
    available = float("inf")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return available if limit == "max" else min(available, float(int(limit) - used))
    except (OSError, StopIteration, ValueError):
        if available == float("inf") and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return available


def free_bytes(device: torch.device) -> float:
    """Return the free bytes of a device's memory. For a CPU this is `available`."""
    import torch

    if device.type != "cuda" or not torch.cuda.is_available():
        return available()
    return float(torch.cuda.mem_get_info(device)[0])


@contextmanager
def out_of_memory_told() -> Iterator[None]:
    """Raise a UserError that advises smaller settings if memory runs out within the block."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        about = " ".join(str(error).split())
        if isinstance(error, MemoryError) or "allocate memory" in about or "out of memory" in about:
            raise UserError(
                "out of memory; stop other programs, set a smaller model.context, sft.batch_size or rl.minibatch, or"
                " turn on model.gradient_checkpointing"
            ) from error
        raise


def refuse_unless_fitting(source: str, model: ModelConfig, free: float) -> None:
    """Raise UserError, before a model is loaded, if its weights alone need more memory than there is.

    Args:
        free: free bytes of the device.
    """
    needed = weight_bytes(shapes_of(files_of(source)), model)
    if needed > free:
        advice = ["model.dtype = 'bfloat16'"] if model.dtype == "float32" and model.quantisation == "none" else []
        advice += [] if model.quantisation == "nf4" else ["model.quantisation = 'nf4' with model.lora_rank"]
        about = f"its weights need {needed / GIB:.2f} GiB, and {max(0.0, free) / GIB:.2f} are free"
        raise UserError(f"model {source!r} does not fit: {about}; try {' or '.join([*advice, 'a smaller model'])}")
