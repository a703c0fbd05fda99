"""Supervised fine-tuning: useful tokens per second against `transformers.Trainer` on the same rows.

    python -m benchmarks.sft --workloads taxi alfworld --sizes 4x256 --batches 16

Rows are the reflector's and the policy's from recorded episodes. Useful tokens are tokens without padding. Trainer runs
as it is ("padded") and with its packing collator ("packed"); `speed-up` is relative to the faster of the two. On CPUs,
the packing collator's attention is over all pairs of a batch's tokens. It is left out if these would take too much
memory. If the logits of a batch take too much, Trainer accumulates the gradients of as many rows as fit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reflectrl.core.config import SFTConfig
from reflectrl.core.episodes import sft_policy, sft_reflection
from reflectrl.learn.examples import Example, choice_examples, reflection_examples
from reflectrl.learn.sft import train_sft
from reflectrl.models.lm import LanguageModel
from reflectrl.models.machine import has_fast_bfloat16
from reflectrl.models.players import Policy

from .measure import count_flops, gemm_rate, growth, interleaved
from .plain import LOGITS_BYTES
from .plain_learning import trainer_sft
from .settings import Settings, main, note
from .workloads import bench_model, records, workload

STEPS = {"cpu": 24, "cuda": 8}
TOKENS = {"cpu": 6_000, "cuda": 60_000}
"""Useful tokens of a training: as many steps as needed, up to `STEPS`, so that start and end do not dominate."""

SCORES_BYTES = 2 * 2**30
"""Largest size in bytes of a layer's attention scores in Trainer's packing."""


def examples_of(lm: LanguageModel, name: str, count: int) -> list[Example]:
    """Draw rows of both players evenly from whole episodes."""
    episodes = records(workload(name), 2 + count // 16)
    reflector, policy = (
        reflection_examples(lm, sft_reflection(episodes)),
        choice_examples(Policy(lm), sft_policy(episodes), 0),
    )
    pairs = [example for pair in zip(reflector, policy, strict=True) for example in pair]
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[:count]]


def engine_sft(lm: LanguageModel, examples: Sequence[Example], batch: int, steps: int) -> float:
    """Return the seconds of the training loop. As always, it ends with an evaluation, here on a short row."""
    config = SFTConfig(steps=steps, batch_size=batch, lr=5e-5, eval_every=steps, eval_rows=1)
    start = time.perf_counter()
    train_sft(lm, examples, [min(examples, key=lambda example: len(example.ids))], config, 0, lambda metrics: None)
    return time.perf_counter() - start


def fitting(batch: int, logits_bytes: int, device: str) -> int:
    """Return the largest divisor of a batch whose rows' logits fit `LOGITS_BYTES`; at least one row."""
    return max(
        n for n in range(1, batch + 1) if batch % n == 0 and (n == 1 or n * logits_bytes <= LOGITS_BYTES[device])
    )


def row(size: str, name: str, batch: int, precision: str, settings: Settings) -> dict[str, Any]:
    """Measure a cell. Every side sees every row once."""
    bf16 = precision == "bf16"
    lm = bench_model(size, workload(name), **settings.player | {"mixed_precision": "on" if bf16 else "off"})
    mean = sum(len(example.ids) for example in examples_of(lm, name, batch)) / batch
    steps = max(1, min(STEPS[lm.device.type], int(TOKENS[lm.device.type] / (mean * batch))))
    examples = examples_of(lm, name, batch * steps)
    tokens = sum(len(example.ids) for example in examples)
    logits_bytes = 4 * max(len(example.ids) for example in examples) * lm.core.config.vocab_size
    minibatch = fitting(batch, logits_bytes, lm.device.type)
    plain = partial(trainer_sft, lm, examples, batch, steps, bf16=bf16, minibatch=minibatch)
    runs = {
        "padded": lambda: plain().seconds,
        "packed": lambda: plain(packing=True).seconds,
        "engine": partial(engine_sft, lm, examples, batch, steps),
    }
    if 4 * lm.core.config.num_attention_heads * (mean * minibatch) ** 2 > SCORES_BYTES:
        del runs["packed"]
    rate = gemm_rate(torch.bfloat16 if bf16 else torch.float32, lm.device)
    flops = count_flops(runs["engine"])
    peaks = {side: growth(run) for side, run in runs.items()}
    seconds = {key: statistics.median(taken) for key, taken in interleaved(runs, settings.repetitions, False).items()}
    speeds = {side: tokens / taken for side, taken in seconds.items()}
    best = max(speed for side, speed in speeds.items() if side != "engine")
    return {
        "size": Path(size).name,
        "workload": name,
        "batch": batch,
        "precision": precision,
        "padded tokens/s": speeds["padded"],
        "packed tokens/s": speeds.get("packed"),
        "tokens/s": speeds["engine"],
        "speed-up": speeds["engine"] / best,
        "mfu": flops / seconds["engine"] / rate,
        "padded MiB": peaks["padded"] / 2**20,
        "MiB": peaks["engine"] / 2**20,
    }


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per cell and precision; bfloat16 only if the machine computes it natively."""
    precisions = ("fp32", "bf16") if has_fast_bfloat16(torch.device(settings.device)) else ("fp32",)
    if settings.dtype == "bfloat16":  # then the products are in bfloat16 with either setting
        precisions = precisions[-1:]
    return [note(row(*cell, precision, settings)) for cell in settings.cells() for precision in precisions]


if __name__ == "__main__":
    main(rows, __doc__)
