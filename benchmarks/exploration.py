"""What each key for rare reward changes: success of a policy that starts from nothing, by reward alone.

    python -m benchmarks.exploration --seeds 5

trains a small model in `examples.key_door` (nothing is paid before the door is open; random actions win two tasks in
ten thousand) with plain PPO, and with one key added at a time. Each row: the success on starts that were held out, over
the seeds, with the interval of their mean; how many seeds learned it; and the wins among the episodes of training that
began at the beginning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from transformers.utils import logging

from examples.key_door import KeyDoorEnv
from reflectrl.config import ModelConfig, RLConfig
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.validation import success_rate
from reflectrl.models.load import load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.players import Policy, RandomPlayer
from reflectrl.players.simple import ScriptedPlayer
from reflectrl.rollout import Job, rollout
from reflectrl.statistics import mean_interval
from reflectrl.types import Episode

from .measure import report
from .settings import note

MODEL = ModelConfig(layers=1, width=32, heads=2, context=64, vocab=320, mixed_precision="off")
PLAIN = RLConfig(
    algorithm="ppo",
    baseline="critic",
    gamma=0.98,
    steps_per_epoch=4,
    lr=2e-3,
    kl_coef=0.0,
    curriculum="none",
    eval_sampling="sampled",
)
ARMS: dict[str, Mapping[str, Any]] = {
    "none": {},
    "reverse": {"reverse": 0.5},
    "milestones": {"milestone_coef": 0.5},
    "milestones, kept at the horizon": {"milestone_coef": 0.5, "milestone_at_horizon": "kept"},
    "counts": {"count_coef": 0.1},
    "counts and milestones": {"count_coef": 0.1, "milestone_coef": 0.5},
    "counts and reverse, nothing shown": {"count_coef": 0.1, "reverse": 0.5},
}
SHOWN = ("reverse",)
"""The arms that are shown one winning episode."""


@dataclass(frozen=True)
class Settings:
    """What is trained, and how often."""

    seeds: int = 5
    """Trainings per row."""
    updates: int = 40
    """Updates of each, of 16 episodes."""
    length: int = 8
    """Cells of the corridor."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Rows."""
    overrides: tuple[str, ...] = ()
    """Further keys of [rl] for all rows, as KEY=NUMBER."""
    json: bool = False
    """Print JSON instead of a table."""


def demonstration(env: KeyDoorEnv) -> Episode:
    """The shortest way from the training start that is the furthest from the key."""
    task = env.tasks("train")[-1]
    script = ["left"] * (task.payload["cell"] - 1) + ["take"] + ["right"] * (env.length - 1) + ["open"]
    [episode] = rollout([Job(task, 0)], lambda: KeyDoorEnv(env.length), ScriptedPlayer(script))
    return episode


def texts(env: KeyDoorEnv) -> Sequence[str]:
    """What the tokenizer is learned from: random play, as `reflectrl run` does where nobody teaches."""
    played = rollout(
        [Job(task, i) for i, task in enumerate(env.tasks("train"))], lambda: KeyDoorEnv(env.length), RandomPlayer()
    )
    actions = " ".join(f"{i}: {action}" for i, action in enumerate(env.legal_actions(), 1))
    return [f"{step.observation.text}Actions: {actions}\nChoice: 1" for episode in played for step in episode.steps]


def train(arm: str, seed: int, settings: Settings, folder: Path) -> dict[str, float]:
    """One training; its success on held-out starts, and the wins among the episodes that it played."""
    env = KeyDoorEnv(settings.length)
    more = {key: float(value) for key, _, value in (one.partition("=") for one in settings.overrides)}
    config = replace(PLAIN, updates=settings.updates, **{**ARMS[arm], **more})
    if not folder.exists():
        save_scratch(folder, MODEL, texts(env), len(env.legal_actions()), seed)
    policy = Policy(load_model(folder, MODEL))
    shown = [demonstration(env)] if arm in SHOWN else []
    rollouts = EpisodeRollouts(policy, None, lambda: KeyDoorEnv(settings.length), config, seed, shown=shown)
    log: list[dict[str, Any]] = []
    train_online(rollouts, config, seed, log.append)
    jobs = [Job(task, 1000 * seed + i) for task in env.tasks("test") for i in range(20)]
    played = list(rollout(jobs, lambda: KeyDoorEnv(settings.length), policy))
    wins = sum(line.get("success", 0.0) for line in log) * config.episodes * (1 - config.reverse)
    return {"success": success_rate(played), "wins": round(wins)}


def rows(settings: Settings) -> list[dict[str, Any]]:
    """A row per arm."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for arm in settings.arms:
            runs = [train(arm, seed, settings, Path(folder) / str(seed)) for seed in range(settings.seeds)]
            success = [run["success"] for run in runs]
            low, high = mean_interval(success, 0.95) or (float("nan"), float("nan"))
            found.append(
                note(
                    {
                        "key": arm,
                        "success": f"{sum(success) / len(success):.0%}",
                        "95 %": f"{max(0, low):.0%} to {min(1, high):.0%}",
                        "seeds at 90 %": f"{sum(rate >= 0.9 for rate in success)} of {len(success)}",
                        "wins in training": " ".join(f"{run['wins']:.0f}" for run in runs),
                    }
                )
            )
    return found


if __name__ == "__main__":
    logging.disable_progress_bar()
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    print(report(rows(chosen), chosen.json), end="")
