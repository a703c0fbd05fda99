"""What each key for rare reward changes: success of a policy that starts from nothing, by reward alone.

    python -m benchmarks.exploration --seeds 5

trains a small model in `reflectrl.examples.key_door` (nothing is paid before the door is open; random actions win 7
tasks in 100,000) with plain PPO, and with one key added at a time. A row has, over seeds, the success of the last ten
updates' episodes from the beginning, with the interval of its mean; how many seeds learned the task (80 %); the success
of the best checkpoint on starts that were held out; and the update of the first win from the beginning, for each seed.
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

from reflectrl.config import ModelConfig, RLConfig
from reflectrl.examples.key_door import KeyDoorEnv
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.validation import success_rate
from reflectrl.models.load import load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.players import Policy, RandomPlayer
from reflectrl.players.simple import ScriptedPlayer
from reflectrl.rollout import Job, rollout
from reflectrl.statistics import mean_interval
from reflectrl.types import Episode, named_seed

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
"""The arms that are shown one winning episode; the others begin from wins of their own, if from any."""
LATEST = 10
"""Updates whose success is reported."""


@dataclass(frozen=True)
class Settings:
    """What is trained, and how often."""

    seeds: int = 5
    """Trainings per row."""
    updates: int = 80
    """Updates of each, of 16 episodes."""
    length: int = 8
    """Cells of the corridor."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Rows."""
    json: bool = False
    """Print JSON instead of a table."""


def demonstration(env: KeyDoorEnv) -> Episode:
    """The shortest way from the training start that is the furthest from the key."""
    task = env.tasks("train")[0]
    script = ["left"] * (task.payload["cell"] - 1) + ["take"] + ["right"] * (env.length - 1) + ["open"]
    [episode] = rollout([Job(task, 0)], partial(KeyDoorEnv, env.length), ScriptedPlayer(script))
    return episode


def texts(env: KeyDoorEnv) -> Sequence[str]:
    """What the tokenizer is learned from: random play, as `reflectrl run` does where nobody teaches."""
    played = rollout(
        [Job(task, i) for i, task in enumerate(env.tasks("train"))], lambda: KeyDoorEnv(env.length), RandomPlayer()
    )
    actions = " ".join(f"{i}: {action}" for i, action in enumerate(env.legal_actions(), 1))
    return [f"{step.observation.text}Actions: {actions}\nChoice: 1" for episode in played for step in episode.steps]


def train(arm: str, seed: int, settings: Settings, folder: Path) -> dict[str, float]:
    """One training: its success in the end and on held-out starts, and the update that brought the first win."""
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
    """The row of an arm's trainings."""
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
    """A row per arm."""
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
