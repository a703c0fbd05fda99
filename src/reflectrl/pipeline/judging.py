"""Judging an arm: playing the tasks of every split, stage and sampling, each into a log of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe
from reflectrl.envs import make
from reflectrl.envs.base import TextEnv
from reflectrl.envs.pool import EnvPool
from reflectrl.episodes import EpisodeLog, drop_half_line, read_episodes
from reflectrl.pipeline.arms import ARMS, Arm
from reflectrl.pipeline.layout import RunFolder
from reflectrl.pipeline.players import Models, load_models, seat_players
from reflectrl.pipeline.progress import Tick
from reflectrl.pipeline.work import Work
from reflectrl.players import Player
from reflectrl.rollout import Job, rollout
from reflectrl.types import Episode, Task, named_seed

Timings = list[dict[str, Any]]

CHUNK = 256
"""Evaluation episodes between two fresh starts of the players' memories.

The last digits of a probability depend on what is computed in one batch, and so on what is remembered. A continued log
plays its open chunk again from the chunk's beginning, in the batches of an uninterrupted run, so both hold the same
bytes; a kill costs at most one chunk's time.
"""


@dataclass(frozen=True)
class Evaluation:
    """One log of an arm: its file, and the tasks that belong in it."""

    path: Path
    split: str
    stage: str
    sampling: str
    tasks: tuple[Task, ...]

    def left(self) -> set[str]:
        """Ids of the tasks whose episodes are not in the log."""
        drop_half_line(self.path)
        done = {episode.task.id for episode in read_episodes(self.path)} if self.path.exists() else set()
        return {task.id for task in self.tasks} - done


def evaluations(recipe: Recipe, run: RunFolder, env: TextEnv, seed: int, name: str) -> Iterator[Evaluation]:
    """The logs of an arm: one per split, stage and sampling."""
    for split in recipe.eval.splits:
        for stage in recipe.eval.stages or (env.stages[-1],):
            tasks = tuple(env.tasks(split, stage)[: recipe.eval.episodes or None])
            for sampling in recipe.eval.sampling:
                path = run.evaluation(name, seed, split, stage, sampling)
                yield Evaluation(path, split, stage, sampling, tasks)


def eval_part(recipe: Recipe, run: RunFolder, seed: int, name: str, tick: Tick) -> Timings:
    """Play one arm on every split, stage and sampling; begun logs are continued. Returns how long each took."""
    env, arm, timings = make(recipe.env), ARMS[name], []
    models = load_models(recipe, run, seed, name)
    planned = list(evaluations(recipe, run, env, seed, name))
    origin = provenance(recipe, name)
    with EnvPool(partial(make, recipe.env), recipe.env_workers) as envs:
        for number, log in enumerate(planned):
            about = {"arm": name, "seed": seed, "split": log.split, "sampling": log.sampling, **origin}
            start, count, work = time.perf_counter(), 0, Work(models)
            seated = partial(_seated, recipe, arm, models, work)
            for _ in _play(recipe, log, about, envs, seated):
                count += 1
                tick(number, len(planned), f"{log.split} {log.stage} {log.sampling}, {count} episodes")
            if count:
                seconds = (time.perf_counter() - start) / count
                shown = {key: about[key] for key in ("arm", "seed", "split", "sampling")}
                timings.append({**shown, "stage": log.stage, "episodes": count, "seconds": seconds, **work.done()})
            tick(number + 1, len(planned), f"{log.split} {log.stage} {log.sampling}")
    return timings


def _seated(
    recipe: Recipe, arm: Arm, models: Models | None, work: Work, temperature: float
) -> tuple[Player, Player | None]:
    return work.watch(seat_players(recipe, arm, models, temperature))


def provenance(recipe: Recipe, name: str) -> dict[str, Any]:
    """Where an arm's episodes come from: the model, the parts that were trained on it, and the versions at work."""
    arm = ARMS[name]
    policy = f"rl-{name}" if arm.rl else arm.policy_part
    model = recipe.model.source if arm.player == "policy" else None
    versions = {package: version(package) for package in ("reflectrl", "torch", "transformers")}
    return {"model": model, "policy": policy, "reflector": arm.reflector_part, "versions": versions}


def _play(
    recipe: Recipe,
    log: Evaluation,
    about: dict[str, Any],
    envs: EnvPool,
    players: Callable[[float], tuple[Player, Player | None]],
) -> Iterator[Episode]:
    """Play what is missing of a log, and write it there."""
    left = log.left()
    log.path.parent.mkdir(parents=True, exist_ok=True)
    temperature = 0.0 if log.sampling == "greedy" else 1.0
    with EpisodeLog(log.path) as file:
        for start in range(0, len(log.tasks), CHUNK):
            tasks = log.tasks[start : start + CHUNK]
            if left.isdisjoint(task.id for task in tasks):
                continue
            jobs = [Job(task, named_seed(about["seed"], "eval", task.id, log.sampling), about) for task in tasks]
            batch = min(recipe.eval.batch, len(jobs))
            for episode in rollout(jobs, envs, *players(temperature), batch):
                if episode.task.id in left:
                    file.append(episode)
                yield episode
