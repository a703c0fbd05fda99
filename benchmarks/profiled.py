"""Most expensive operations in play, an update and SFT, by torch's profiler.

    python -m benchmarks.profiled --workloads taxi --sizes 4x256 --batches 16 --device cuda

On a GPU, operations are sorted by their time on the device, and `host ms` is the time to launch them. If the host's
total is larger than the device's, the device waits for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .play import Cell
from .settings import Settings, main, note
from .sft import engine_sft, examples_of
from .update import clean, consecutive, engine_gradients
from .workloads import bench_model, workload

SHOWN = 12
"""Number of operations listed per part."""


def profiled(compute: Callable[[], Any], device: str) -> list[dict[str, Any]]:
    """Profile a call. Return its operations with calls and milliseconds, the most expensive first.

    The first row is the total. One call before is not profiled.
    """
    compute()
    on_gpu = torch.device(device).type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        compute()
        if on_gpu:
            torch.cuda.synchronize()
    operations = []
    for event in profiler.key_averages():
        device_ms, host_ms = event.self_device_time_total / 1000, event.self_cpu_time_total / 1000
        operations.append(
            {"operation": event.key[:60], "calls": event.count, "device ms": device_ms, "host ms": host_ms}
        )
    total = {key: sum(row[key] for row in operations) for key in ("calls", "device ms", "host ms")}
    operations.sort(key=lambda row: -row["device ms" if on_gpu else "host ms"])
    return [{"operation": "total", **total}, *operations[:SHOWN]]


def parts(size: str, name: str, batch: int, settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return the parts: a step of play of all episodes, an update, and an optimiser step of SFT."""
    cell = Cell(size, name, batch, settings.speculative == "on", settings.shares[:1], **settings.player)
    lm = bench_model(size, workload(name), **settings.player)
    steps, examples = consecutive(name, batch), examples_of(lm, name, batch)
    return {
        "play": lambda: cell.engine_ticks(lambda tick: float(tick() or 0)),
        "update": lambda: clean(lm, lambda: engine_gradients(lm, steps)),
        "sft": lambda: engine_sft(lm, examples, batch, 1),
    }


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of every part of every cell."""
    table_rows = []
    for size, name, batch in settings.cells():
        for part, compute in parts(size, name, batch, settings).items():
            about = {"size": Path(size).name, "batch": batch, "of": part}
            table_rows += [note(about | row) for row in profiled(compute, settings.device)]
    return table_rows


if __name__ == "__main__":
    main(rows, __doc__)
