"""The RL update: seconds of a gradient by the engine's packing against step-by-step encoding.

    python -m benchmarks.update --workloads alfworld --sizes 4x256 --batches 16 64

`batch` consecutive steps of recorded episodes, in the middle of the first one, are one forward and backward pass; the
plain side takes fewer at a time where the logits of all positions would not fit its memory. Both give the gradient of
the same loss (`difference` is the relative distance). Advantage and choice are arbitrary: they do not change the work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from reflectrl.learn.batch import Batch, policy_pass
from reflectrl.learn.losses import entropy, reinforce_loss
from reflectrl.models.lm import LanguageModel
from reflectrl.players.policy import Policy
from reflectrl.types import Sampling, Step

from .measure import count_flops, gemm_rate, growth, interleaved
from .plain import LOGITS_BYTES
from .plain_learning import update_gradients
from .settings import Settings, main
from .workloads import bench_model, records, workload

ENTROPY = 0.01


def consecutive(name: str, count: int) -> list[Step]:
    """So many steps in a row, from the middle of an episode on (or from its start, if that holds them all)."""
    work, steps = workload(name), []
    for episode in records(work, 1 + count // 8):
        steps += episode.steps
    first = len(records(work, 1)[0].steps)
    start = max(0, min(first // 2, first - count)) if count <= first else 0
    return steps[start : start + count]


def engine_gradients(lm: LanguageModel, steps: list[Step]) -> int:
    """The gradient by one packed pass, left in `.grad`; returns the tokens that it encoded."""
    policy = Policy(lm, Sampling(1.0))
    before = lm.tally.copy()
    actions = [step.observation.actions for step in steps]
    prompts = [policy.prompt(step.observation, step.reflection) for step in steps]
    nothing, labels_N = torch.zeros(len(steps)), torch.tensor([step.action for step in steps], device=lm.device)
    batch = Batch(prompts, actions, labels_N, nothing, nothing, nothing, [len(steps)], ["all"])
    logp_NA, _ = policy_pass(policy, batch, range(len(steps)))
    chosen_N = logp_NA.gather(1, labels_N[:, None])[:, 0]
    (reinforce_loss(chosen_N, torch.ones_like(chosen_N)) - ENTROPY * entropy(logp_NA).mean()).backward()
    return lm.tally.since(before).encoded


def gradient_of(lm: LanguageModel, compute: Callable[[], Any]) -> torch.Tensor:
    """All gradients that `compute` leaves, as one vector; they are cleared."""
    lm.model.zero_grad(set_to_none=True)
    compute()
    found = [p.grad.flatten() for p in lm.parameters() if p.grad is not None]
    lm.model.zero_grad(set_to_none=True)
    return torch.cat(found)


def row(size: str, name: str, batch: int, settings: Settings) -> dict[str, Any]:
    """One cell."""
    steps = consecutive(name, batch)
    lm = bench_model(size, workload(name), device=settings.device, dtype=settings.dtype)
    longest = max(len(Policy(lm).prompt(step.observation, step.reflection)) for step in steps)
    minibatch = max(1, min(batch, LOGITS_BYTES // (4 * longest * lm.core.config.vocab_size)))
    plain, engine = lambda: update_gradients(lm, steps, minibatch), lambda: engine_gradients(lm, steps)
    rate = gemm_rate(lm.dtype, lm.device)
    plain_flops, flops = count_flops(plain), count_flops(engine)
    theirs, ours = gradient_of(lm, plain), gradient_of(lm, engine)
    difference = float((ours - theirs).norm() / theirs.norm())
    del theirs, ours
    seconds = interleaved(
        {"plain": lambda: clean(lm, plain), "engine": lambda: clean(lm, engine)}, settings.repetitions, False
    )
    slow, fast = statistics.median(seconds["plain"]), statistics.median(seconds["engine"])
    return {
        "size": size,
        "workload": name,
        "batch": batch,
        "plain steps/s": batch / slow,
        "steps/s": batch / fast,
        "speed-up": slow / fast,
        "predicted": plain_flops / flops,
        "reached": slow / fast / (plain_flops / flops),
        "plain mfu": plain_flops / slow / rate,
        "mfu": flops / fast / rate,
        "plain read": plain().tokens.encoded / batch,
        "read": engine() / batch,
        "plain MiB": growth(lambda: clean(lm, plain)) / 2**20,
        "MiB": growth(lambda: clean(lm, engine)) / 2**20,
        "difference": difference,
    }


def clean(lm: LanguageModel, compute: Callable[[], Any]) -> None:
    """Compute from no gradients on."""
    lm.model.zero_grad(set_to_none=True)
    compute()


def rows(settings: Settings) -> list[dict[str, Any]]:
    """A row per cell."""
    return [row(*cell, settings) for cell in settings.cells()]


if __name__ == "__main__":
    main(rows, __doc__)
