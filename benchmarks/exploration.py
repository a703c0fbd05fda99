"""Effect of each key for rare reward: success of a policy that starts from scratch and learns by reward alone.

    python -m benchmarks.exploration --seeds 5

This trains a small model in `reflectrl.examples.key_door` with plain PPO, and with one key added at a time. There is no
reward before the door is open; random actions win 7 tasks in 100,000. A row has, over seeds: the success in episodes
from the beginning in the last ten updates, with the interval of its mean; the number of seeds that learned the task (80
%); the success of the best checkpoint on held-out starts; and for each seed the update with the first win from the
beginning.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro
from transformers.utils import logging

from reflectrl.core.config import ModelConfig, RLConfig
from reflectrl.core.players import RandomPlayer
from reflectrl.core.players.simple import ScriptedPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import Episode, named_seed
from reflectrl.examples.key_door import KeyDoorEnv
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.validation import success_rate
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.models.scratch import save_scratch

from .measure import report
from .settings import note

MODEL = ModelConfig(layers=1, width=32, heads=2, context=64, vocab=320, mixed_precision="off")
PLAIN = RLConfig(
    algorithm="ppo",
    baseline="critic",
    gamma=0.98,
    steps_per_epoch=4,
    lr=1e-3,
    kl_coef=0.0,
    curriculum="none",
    eval_sampling="sampled",
)
BY_GROUPS = {"baseline": "leave-one-out", "group": 4}
ARMS: dict[str, Mapping[str, Any]] = {
    "none": {},
    "reverse": {"reverse": 0.5},
    "milestones": {"milestone_coef": 0.5},
    "milestones, kept": {"milestone_coef": 0.5, "milestone_at_horizon": "kept"},
    "milestones, kept; group baseline": {"milestone_coef": 0.5, "milestone_at_horizon": "kept", **BY_GROUPS},
    "counts": {"count_coef": 0.1},
    "all three, nothing shown": {"reverse": 0.5, "milestone_coef": 0.5, "count_coef": 0.1},
}
SHOWN = ("reverse",)
"""Arms that are shown a winning episode. The others must find their first win by themselves."""
LATEST = 10
"""Number of last updates whose success is reported."""


@dataclass(frozen=True)
class Settings:
    """Settings of the trainings."""

    seeds: int = 5
    """Trainings per row."""
    updates: int = 80
    """Updates per training, with 16 episodes each."""
    length: int = 8
    """Cells of the corridor."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Arms to train, a row each."""
    json: bool = False
    """Print JSON instead of a table."""


def demonstration(env: KeyDoorEnv) -> Episode:
    """Play the shortest path from the training start that is furthest from the key."""
    task = env.tasks("train")[0]
    script = ["left"] * (task.payload["cell"] - 1) + ["take"] + ["right"] * (env.length - 1) + ["open"]
    [episode] = rollout([Job(task, 0)], partial(KeyDoorEnv, env.length), ScriptedPlayer(script))
    return episode


def texts(env: KeyDoorEnv) -> Sequence[str]:
    """Return texts for training the tokenizer, from random play, as `reflectrl run` does if there is no teacher."""
    played = rollout(
        [Job(task, i) for i, task in enumerate(env.tasks("train"))], lambda: KeyDoorEnv(env.length), RandomPlayer()
    )
    actions = " ".join(f"{i}: {action}" for i, action in enumerate(env.legal_actions(), 1))
    return [f"{step.observation.text}Actions: {actions}\nChoice: 1" for episode in played for step in episode.steps]


def train(arm: str, seed: int, settings: Settings, folder: Path) -> dict[str, float]:
    """Train once. Return the success at the end and on held-out starts, and the update of the first win."""
    env = KeyDoorEnv(settings.length)
    config = replace(PLAIN, updates=settings.updates, **ARMS[arm])
    if not folder.exists():
        save_scratch(folder, MODEL, texts(env), len(env.legal_actions()), seed)
    policy = Policy(load_model(folder, MODEL))
    shown = [demonstration(env)] if arm in SHOWN else []
    make_env = partial(KeyDoorEnv, settings.length)
    log: list[dict[str, Any]] = []
    train_online(EpisodeRollouts(policy, None, make_env, config, seed, shown=shown), config, seed, log.append)
    rates = [line["success"] for line in log if "success" in line]
    jobs = [Job(task, named_seed(seed, task.id, i)) for task in env.tasks("test") for i in range(20)]
    latest = rates[-LATEST:]
    first = next((i for i, rate in enumerate(rates, 1) if rate > 0), math.inf)
    return {
        "success": sum(latest) / len(latest),
        "held out": success_rate(list(rollout(jobs, make_env, policy))),
        "first win": first,
    }


def row_of(arm: str, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Summarise an arm's trainings in a row."""
    success, held_out = ([run[name] for run in runs] for name in ("success", "held out"))
    low, high = mean_interval(success, 0.95) or (0.0, 1.0)
    return {
        "key": arm,
        "success": f"{fmean(success):.0%}",
        "95 %": f"{max(0.0, low):.0%} to {min(1.0, high):.0%}",
        "learned": f"{sum(rate >= 0.8 for rate in success)} of {len(success)}",
        "held out": f"{fmean(held_out):.0%}",
        "first win": " ".join("-" if math.isinf(run["first win"]) else f"{run['first win']:.0f}" for run in runs),
    }


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per arm."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for arm in settings.arms:
            runs = [train(arm, seed, settings, Path(folder) / str(seed)) for seed in range(settings.seeds)]
            found.append(note(row_of(arm, runs)))
    return found


if __name__ == "__main__":
    logging.disable_progress_bar()
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    print(report(rows(chosen), chosen.json), end="")
