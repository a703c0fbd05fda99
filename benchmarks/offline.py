"""Speed and memory of offline learning: A-LoL beside plain likelihood, on the same model and samples.

    python -m benchmarks.offline --sizes 4x256 --batches 16

Samples are the reflections of recorded episodes, with random rewards. The log-probabilities of the reference model are
computed beforehand, as in every training. A-LoL then reads as many tokens as likelihood does, and only one model is in
memory. `throughput` and `memory` are A-LoL's values divided by likelihood's; the aims are at least 0.9 and at most 1.1.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from reflectrl.core.episodes import sft_reflection
from reflectrl.methods.offline import train_offline
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import Algorithm, OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import ReferenceCache, score_reference
from reflectrl.wings.text.learn.text_dataset import text_dataset
from reflectrl.wings.text.samples.sample import Sample

from .measure import interleaved, peak_memory
from .settings import Settings, main, note
from .workloads import bench_model, records, workload

STEPS = 4
MOST_PROCESSES = 3
"""Largest number of processes whose peak of memory is measured (at most `repetitions`). Their median counts."""
ALGORITHMS: tuple[Algorithm, ...] = ("nll", "a_lol")

Given = tuple[Dataset, ReferenceCache, int]


def prepared(size: str, name: str, batch: int, device: str = "cpu") -> Given:
    """Prepare samples and the reference model's scores. Every value is 0, so that all samples are learned from."""
    lm = bench_model(size, workload(name), device=device)
    count = batch * STEPS
    rows = sft_reflection(records(workload(name), 2 + count // 8))[:count]
    rewards = np.random.default_rng(0).random(len(rows)) + 0.1
    samples = [
        Sample(str(i), str(i), row.prompt.history + row.prompt.rest, row.completion, float(reward))
        for i, (row, reward) in enumerate(zip(rows, rewards, strict=True))
    ]
    data = text_dataset(lm, samples, OfflineConfig(prompt_tokens=lm.context))
    return data, score_reference(data, torch.zeros(len(data))), batch


def train(algorithm: Algorithm, given: Given) -> float:
    """Return the seconds of the training loop over all samples once, without evaluation."""
    data, cache, batch = given
    config = OfflineConfig(
        algorithm=algorithm, sampling="none", steps=STEPS, batch_size=batch, eval_every=STEPS, lr=1e-6
    )
    start = time.perf_counter()
    train_offline(data, cache, config, 0, lambda metrics: None, evaluate=lambda: {"nothing": 0.0})
    return time.perf_counter() - start


def with_nll(given: Given) -> None:
    """Train by likelihood, in a process of its own."""
    train("nll", given)


def with_a_lol(given: Given) -> None:
    """Train by A-LoL, in a process of its own."""
    train("a_lol", given)


def row(size: str, name: str, batch: int, settings: Settings) -> dict[str, Any]:
    """Measure a cell: both algorithms on the same samples, interleaved. Memory is measured in fresh processes."""
    inputs = prepared(size, name, batch, settings.device)
    completions = inputs[0].completions
    tokens = sum(map(len, completions.prompts)) + sum(map(len, completions.answers))
    runs = {algorithm: partial(train, algorithm, inputs) for algorithm in ALGORITHMS}
    seconds = {key: statistics.median(taken) for key, taken in interleaved(runs, settings.repetitions).items()}
    nll_mib, a_lol_mib = (
        _median_mib(run, min(settings.repetitions, MOST_PROCESSES), size, name, batch) for run in (with_nll, with_a_lol)
    )
    return {
        "size": size,
        "workload": name,
        "batch": batch,
        "nll tokens/s": tokens / seconds["nll"],
        "A-LoL tokens/s": tokens / seconds["a_lol"],
        "throughput": seconds["nll"] / seconds["a_lol"],
        "nll MiB": nll_mib,
        "A-LoL MiB": a_lol_mib,
        "memory": a_lol_mib / nll_mib if nll_mib and a_lol_mib else None,
    }


def _median_mib(run: Callable[[Given], None], processes: int, size: str, name: str, batch: int) -> float | None:
    """Return the median peak memory, since the allocator's share differs by a quarter between processes."""
    peaks = [peak_memory(run, size, name, batch, prepare=prepared) for _ in range(processes)]
    measured = [peak / 2**20 for peak in peaks if peak is not None]
    return statistics.median(measured) if measured else None


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per cell. Memory is measured on the CPU whatever the device."""
    return [note(row(*cell, settings)) for cell in settings.cells()]


if __name__ == "__main__":
    main(rows, __doc__)
