"""The RL update: seconds of a gradient by the engine's packing against step-by-step encoding.

    python -m benchmarks.update --workloads alfworld --sizes 4x256 --batches 16 64

A forward and backward pass has `batch` consecutive steps of recorded episodes, from the middle of the first episode on.
The plain side takes fewer steps at a time if the logits of all positions would not fit its memory. Both compute the
gradient of the same loss (`difference` is their relative distance). Advantage and choice are arbitrary, since they do
not change the work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from reflectrl.core.types import Sampling, Step
from reflectrl.learn.losses import entropy, reinforce_loss
from reflectrl.learn.steps import Steps, policy_pass
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy

from .measure import counted, gemm_rate, growth, host_waits, interleaved
from .plain import LOGITS_BYTES
from .plain_learning import update_gradients
from .settings import Settings, main, note
from .workloads import bench_model, records, workload

ENTROPY = 0.01


def consecutive(name: str, count: int) -> list[Step]:
    """Return `count` steps in a row, from the middle of an episode on (or from its start, if that holds them all)."""
    work, steps = workload(name), []
    for episode in records(work, 1 + count // 8):
        steps += episode.steps
    first = len(records(work, 1)[0].steps)
    start = max(0, min(first // 2, first - count)) if count <= first else 0
    return steps[start : start + count]


def engine_gradients(lm: LanguageModel, steps: list[Step]) -> int:
    """Compute the gradient by a packed pass, and leave it in `.grad`. Return the number of encoded tokens."""
    policy = Policy(lm, Sampling(1.0))
    before = lm.counters.copy()
    actions = [step.observation.actions for step in steps]
    prompts = [policy.prompt(step.observation, step.reflection) for step in steps]
    nothing, labels_N = torch.zeros(len(steps)), torch.tensor([step.action for step in steps], device=lm.device)
    batch = Steps(prompts, actions, labels_N, nothing, nothing, nothing, [len(steps)], ["all"])
    logp_NA, _ = policy_pass(policy, batch, range(len(steps)))
    chosen_N = logp_NA.gather(1, labels_N[:, None])[:, 0]
    (reinforce_loss(chosen_N, torch.ones_like(chosen_N)) - ENTROPY * entropy(logp_NA).mean()).backward()
    return lm.counters.since(before).encoded


def row(size: str, name: str, batch: int, settings: Settings) -> dict[str, Any]:
    """Measure a cell."""
    steps = consecutive(name, batch)
    lm = bench_model(size, workload(name), **settings.player)
    longest = max(len(Policy(lm).prompt(step.observation, step.reflection)) for step in steps)
    minibatch = max(1, min(batch, LOGITS_BYTES[lm.device.type] // (4 * longest * lm.core.config.vocab_size)))
    plain, engine = lambda: update_gradients(lm, steps, minibatch), lambda: engine_gradients(lm, steps)
    rate = gemm_rate(lm.dtype, lm.device)
    gradients, peaks, tokens, seconds, flops = {}, {}, {}, {}, {}
    for name_of, side in (("plain", plain), ("engine", engine)):

        def work(name_of: str = name_of, side: Callable[[], Any] = side) -> None:
            tokens[name_of] = side()

        lm.model.zero_grad(set_to_none=True)
        # One run gives peak, seconds and FLOPs, since a heavy plain update is not run again.
        peaks[name_of] = growth(lambda work=work, key=name_of: seconds.__setitem__(key, counted(work)))
        seconds[name_of], flops[name_of] = seconds[name_of]
        gradients[name_of] = torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None])
    difference = float((gradients["engine"] - gradients["plain"]).norm() / gradients["plain"].norm())
    gradients.clear()
    waits = None if lm.device.type == "cpu" else host_waits(lambda: clean(lm, engine))
    if flops["plain"] < settings.heavy:  # otherwise the counted run is the timed run, too
        runs = {"plain": lambda: clean(lm, plain), "engine": lambda: clean(lm, engine)}
        again = interleaved(runs, settings.repetitions, warm_up=False)
        seconds = {key: statistics.median(taken) for key, taken in again.items()}
    slow, fast = seconds["plain"], seconds["engine"]
    predicted = flops["plain"] / flops["engine"]
    return {
        "size": Path(size).name,
        "workload": name,
        "batch": batch,
        "plain steps/s": batch / slow,
        "steps/s": batch / fast,
        "speed-up": slow / fast,
        "predicted": predicted,
        "reached": slow / fast / predicted,
        "plain mfu": flops["plain"] / slow / rate,
        "mfu": flops["engine"] / fast / rate,
        "plain read": tokens["plain"].tokens.encoded / batch,
        "read": tokens["engine"] / batch,
        "plain MiB": peaks["plain"] / 2**20,
        "MiB": peaks["engine"] / 2**20,
        "waits/pass": waits,
        "difference": difference,
    }


def clean(lm: LanguageModel, compute: Callable[[], Any]) -> None:
    """Compute with gradients reset."""
    lm.model.zero_grad(set_to_none=True)
    compute()


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per cell."""
    return [note(row(*cell, settings)) for cell in settings.cells()]


if __name__ == "__main__":
    main(rows, __doc__)
