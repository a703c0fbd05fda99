"""Steps per second of environments in the player's own process, beside worker processes.

    python -m benchmarks.environments --repetitions 5

Workers help if an environment step takes milliseconds, and hurt if it takes microseconds. The player chooses at random,
so nearly all of the time is spent in environments and pipes. Starting the workers is not measured. It takes about a
second, once per part of a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode
from reflectrl.wings.taxi.env import TaxiEnv

from .sleeping import Sleeping

if TYPE_CHECKING:  # brings torch
    from .settings import Settings

ENVIRONMENTS: dict[str, tuple[Callable[[], TextEnv], int]] = {"sleeping 5 ms": (Sleeping, 16), "taxi": (TaxiEnv, 512)}
"""Factory of each environment, and the number of episodes played in it."""
WORKERS = (0, 1, 2)
BATCH = 16


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per environment and number of workers: median steps per second, and the ratio to in-process."""
    return [row for name in ENVIRONMENTS for row in _compared(name, settings.repetitions)]


def _compared(name: str, repetitions: int) -> list[dict[str, Any]]:
    from .measure import interleaved  # brings torch, which workers that import this file do not need

    make_env, episodes = ENVIRONMENTS[name]
    tasks = make_env().tasks("train")
    jobs = [Job(tasks[i % len(tasks)], i) for i in range(episodes)]
    with ExitStack() as stack:
        pools = {workers: stack.enter_context(EnvPool(make_env, workers)) for workers in WORKERS}
        steps = sum(len(episode.steps) for episode in _play(jobs, pools[0]))  # the same for all pools
        playing = {str(workers): partial(_play, jobs, pool) for workers, pool in pools.items()}
        seconds = interleaved(playing, repetitions)
    speeds = {workers: steps / statistics.median(seconds[str(workers)]) for workers in WORKERS}
    return [
        {"environment": name, "workers": workers, "steps/s": speed, "ratio": speed / speeds[0]}
        for workers, speed in speeds.items()
    ]


def _play(jobs: list[Job], pool: EnvPool) -> list[Episode]:
    return list(rollout(jobs, pool, RandomPlayer(), batch=BATCH))


if __name__ == "__main__":
    from .settings import main

    main(rows, __doc__)
