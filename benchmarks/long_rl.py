"""Does online RL leak memory in a long training? Resident memory of a process over thousands of updates.

    python -m benchmarks.long_rl --updates 2000

A small pair plays and learns DangerousTaxi with everything that keeps data between updates: reflections, replay,
groups, counts of observations and draws by success. Memory is read from the system after every update. Caches and
buffers fill in the first tenth of the updates. The exit code is 1 if the 95 % quantile of the later values is more than
3 % above the maximum of the first tenth. Episodes are short, since a leak would grow with their number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import tyro

from reflectrl.core.config import RLConfig
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.models.players import Policy, Reflector
from reflectrl.wings.taxi.env import TaxiEnv

from .workloads import bench_model, workload

MOST_GROWTH = 0.03


@dataclass(frozen=True)
class Settings:
    """Settings of the training."""

    updates: int = 2000
    """Number of updates of online RL."""
    episodes: int = 4
    """Episodes per update."""
    json: bool = False
    """Print JSON instead of lines."""


def resident_memory(settings: Settings) -> np.ndarray:
    """Train, and return this process's memory in MiB after each update."""
    taxi = workload("taxi")
    policy, reflector = (bench_model("tiny", taxi) for _ in range(2))
    config = RLConfig(
        algorithm="ppo",
        baseline="gigpo",
        group=2,
        refills=1,
        updates=settings.updates,
        episodes=settings.episodes,
        update_epochs=1,
        curriculum="none",
        draw="by-success",
        count_coef=0.1,
        self_imitation=True,
        eval_every=max(1, settings.updates // 20),
        eval_episodes=2,
    )
    process, found = psutil.Process(), []

    def note(metrics: dict[str, Any]) -> None:
        found.append(process.memory_info().rss / 2**20)

    with TemporaryDirectory() as folder:
        players = Policy(policy), Reflector(reflector, max_new_tokens=8)
        rollouts = EpisodeRollouts(*players, partial(TaxiEnv, horizon=5), config, seed=0)
        train_online(rollouts, config, 0, note, Path(folder) / "learner")
    return np.array(found)


def growth(memory: np.ndarray) -> float:
    """Return the growth of memory: the 95 % quantile after the first tenth, relative to the first tenth's maximum."""
    first = max(1, len(memory) // 10)
    return float(np.quantile(memory[first:], 0.95) / memory[:first].max() - 1)


def main(settings: Settings) -> int:
    """Train, and print how memory developed."""
    memory = resident_memory(settings)
    parts = [float(part.max()) for part in np.array_split(memory, 10)]
    row = {"updates": settings.updates, "growth": growth(memory), "MiB by tenths": [round(part, 1) for part in parts]}
    print(json.dumps(row) if settings.json else "\n".join(f"{key}: {value}" for key, value in row.items()))
    return int(row["growth"] > MOST_GROWTH)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Settings, description=__doc__)))
