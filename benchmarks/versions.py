"""Two versions of the code side by side: seconds of play, an update and SFT, interleaved, and their ratio.

    git worktree add ../before HEAD~10
    python -m benchmarks.versions ../before --sizes 4x256 --batches 1 16

Each version runs in a process of its own, which imports the package and the benchmarks from its own tree and is asked
for one repetition at a time. A ratio above 1 means that this tree is slower than the other.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

TICKS = 6
"""Number of steps of each episode in a repetition of play."""
WRITTEN = 24
"""Largest number of tokens of a reflection. The models are random, so reflections nearly always reach it."""


# ---- one version: a process that reads the name of a cell, and answers with seconds ---------------------------------


def play(size: str, name: str, batch: int, **settings: Any) -> Callable[[], Any]:
    """Prepare a repetition of play: two players through `TICKS` steps of `batch` episodes."""
    from benchmarks.workloads import bench_model, workload

    try:
        from reflectrl.core.rollout import Job, rollout
        from reflectrl.core.types import Sampling
        from reflectrl.models.players import Policy, Reflector
    except ModuleNotFoundError:  # a version from before the package was divided into rooms
        rollouts, players = import_module("reflectrl.rollout"), import_module("reflectrl.players")
        Job, rollout, Policy, Reflector = rollouts.Job, rollouts.rollout, players.Policy, players.Reflector
        Sampling = import_module("reflectrl.types").Sampling

    work = workload(name, TICKS)
    policy, reflector = (bench_model(size, work, seed=seed, **settings) for seed in (1, 2))

    def repetition() -> None:
        players = Policy(policy, Sampling(1.0), memory=0), Reflector(reflector, WRITTEN, Sampling(1.0), memory=0)
        jobs = [Job(work.tasks[i % len(work.tasks)], i) for i in range(batch)]
        list(rollout(jobs, work.make_env, *players, batch=batch))

    return repetition


def update(size: str, name: str, batch: int, **settings: Any) -> Callable[[], Any]:
    """Prepare the gradient of an update over `batch` steps in a row."""
    from benchmarks.update import consecutive, engine_gradients
    from benchmarks.workloads import bench_model, workload

    lm, steps = bench_model(size, workload(name), **settings), consecutive(name, batch)
    return lambda: (lm.model.zero_grad(set_to_none=True), engine_gradients(lm, steps))


def sft(size: str, name: str, batch: int, **settings: Any) -> Callable[[], Any]:
    """Prepare two optimiser steps over `batch` rows each."""
    from benchmarks.sft import engine_sft, examples_of
    from benchmarks.workloads import bench_model, workload

    lm = bench_model(size, workload(name), **settings)
    examples = examples_of(lm, name, 2 * batch)
    return lambda: engine_sft(lm, examples, batch, 2)


PROGRAMS = {"play": play, "update": update, "sft": sft}
PRECISIONS: dict[str, dict[str, str]] = {"float32": {}, "bfloat16": {"mixed_precision": "on", "mixed_play": "on"}}
"""Precision of matrix products → settings of the models."""


def serve(clock: str, precision: str) -> None:
    """Answer each line "program size workload batch" with the seconds of a repetition."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    now = time.process_time if clock == "cpu" else time.perf_counter
    prepared: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        if line not in prepared:
            prepared.clear()
            program, size, name, batch = line.split()
            prepared[line] = PROGRAMS[program](size, name, int(batch), **PRECISIONS[precision])
            prepared[line]()
        start = now()
        prepared[line]()
        print(now() - start, flush=True)


# ---- both ------------------------------------------------------------------------------------------------------------


class Version:
    """Process that runs the code of a tree."""

    def __init__(self, tree: Path, clock: str, precision: str) -> None:
        paths = os.pathsep.join([str(tree / "src"), str(tree)])
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", clock, precision],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree, env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip

    def seconds(self, cell: str) -> float:
        """Return the seconds of a repetition."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(cell, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{cell}: the process ended")
        return float(answer)


@dataclass(frozen=True)
class Versions:
    """Settings of the comparison."""

    before: Annotated[Path, tyro.conf.Positional]
    """Folder of the other version's tree."""
    programs: tuple[str, ...] = tuple(PROGRAMS)
    """Programs to compare: "play", "update", "sft"."""
    sizes: tuple[str, ...] = ("4x256",)
    """Sizes of models, as in the other programs."""
    workloads: tuple[str, ...] = ("taxi", "taxi-history", "alfworld")
    """Workloads: "taxi", "taxi-history", "alfworld"."""
    batches: tuple[int, ...] = (1, 16)
    """Numbers of episodes, steps or rows at a time."""
    repetitions: int = 5
    """Repetitions of each version, interleaved."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products: "bfloat16" as on processors that are fast at it."""
    clock: Literal["wall", "cpu"] = "wall"
    """Clock: "wall", or "cpu" for processor time, which suits a machine that does other things meanwhile."""


def main() -> None:
    """Print a line per cell: median seconds of both versions, and the median of the ratios pair by pair."""
    args = tyro.cli(Versions, description=(__doc__ or "").split("\n\n")[0])
    here = Path(__file__).resolve().parents[1]
    now, before = (Version(tree, args.clock, args.precision) for tree in (here, args.before.resolve()))
    print("| program | size | workload | batch | before (s) | now (s) | now / before |\n|---|---|---|---|---|---|---|")
    cells = [
        f"{program} {size} {name} {batch}"
        for program in args.programs for size in args.sizes for name in args.workloads for batch in args.batches
    ]  # fmt: skip
    for cell in cells:
        pairs = [(now.seconds(cell), before.seconds(cell)) for _ in range(args.repetitions)]
        ratio = statistics.median(mine / other for mine, other in pairs)
        mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {' | '.join(cell.split())} | {other:.3f} | {mine:.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    serve(*sys.argv[2:]) if "--serve" in sys.argv else main()
