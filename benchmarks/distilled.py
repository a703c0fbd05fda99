"""Price of playing without the reflector: success and steps per second of a run's arms, side by side.

    python -m benchmarks.distilled runs/taxi-distilled

Success and its interval come from the run's `results.json` (test tasks, greedy, all seeds together). Steps per second
of CPU time are measured here. Each arm plays the first test tasks with empty caches. The arms take turns, and the
median round counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import tyro

from reflectrl.api import Run, load_agent
from reflectrl.core.config import load_recipe
from reflectrl.core.envs import make
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import UserError
from reflectrl.models.players import LanguagePlayer
from reflectrl.runs.arms import all_arms


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    run: tyro.conf.Positional[Path]
    """A finished run."""
    episodes: int = 50
    """Number of test tasks that are timed."""
    rounds: int = 3
    """Number of rounds; the median counts."""
    batch: int = 16
    """Episodes that are played at the same time."""
    seed: int = 0
    """Training seed of the agents that are timed."""
    trust: bool = False
    """Let the run's recipe load the code that it names."""


def steps_per_second(settings: Settings, arms: Sequence[str]) -> dict[str, float]:
    """Return each arm's steps per second, the median over rounds."""
    recipe = load_recipe(settings.run / "recipe.toml", trust=settings.trust)
    agents = {arm: load_agent(settings.run, arm, settings.seed, trust=settings.trust) for arm in arms}
    jobs = [Job(task, i) for i, task in enumerate(make(recipe.env).tasks("test")[: settings.episodes])]
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(settings.rounds):
        for arm, agent in agents.items():
            for player in (agent.player, agent.reflector):
                if isinstance(player, LanguagePlayer):
                    player.clear_cache()
            start = time.process_time()
            played = rollout(jobs, partial(make, recipe.env), agent.player, agent.reflector, settings.batch)
            steps = sum(len(episode.steps) for episode in played)
            found[arm].append(steps / (time.process_time() - start))
    return {arm: median(rates) for arm, rates in found.items()}


def main(settings: Settings) -> None:
    """Print a line for each arm that plays with a model."""
    results, known = Run(settings.run).results, all_arms()
    rows = [row for row in results["summary"] if (row["split"], row["sampling"]) == ("test", "greedy")]
    stage = rows[-1]["stage"]
    whole = {row["arm"]: row for row in rows if row["stage"] == stage and known[row["arm"]].player == "policy"}
    speeds = steps_per_second(settings, list(whole))
    print(f"{'arm':20} {'success':>8} {'interval':>16} {'steps':>7} {'steps/s':>9}")
    for arm, row in whole.items():
        interval = "" if row["low"] is None else f"{row['low']:.0%} to {row['high']:.0%}"
        print(f"{arm:20} {row['success']:8.1%} {interval:>16} {row['steps']:7.1f} {speeds[arm]:9.1f}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        sys.exit(f"benchmarks.distilled: {error}")
