"""Evaluation of an arm: it plays the tasks of every split, stage and sampling, each into a separate log."""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reflectrl.core import distributed
from reflectrl.core.advice import option
from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import SPLITS, TextEnv, tasks_named
from reflectrl.core.envs.pool import EnvPool, pool_of
from reflectrl.core.envs.teacher import ABILITIES
from reflectrl.core.episodes import EpisodeLog, check_disjoint, drop_half_line, read_episodes
from reflectrl.core.players import Player
from reflectrl.core.plugins import suggestion
from reflectrl.core.rollout import Job, advance, rollout
from reflectrl.core.types import Episode, Task, UserError, named_seed
from reflectrl.learn.curriculum import make_curriculum
from reflectrl.learn.exploration import RewardShaping
from reflectrl.models.labels import require_labels
from reflectrl.runs.arms import Arm, select_arms
from reflectrl.runs.artifact import Build, Source
from reflectrl.runs.calibration import calibration_of, fit_arm
from reflectrl.runs.folder import OTHER_TASKS, Context, RunFolder
from reflectrl.runs.players import Models, build_players, calibrated, is_base, load_pair, name_of

Timings = list[dict[str, Any]]
Attempt = tuple[str, int]
"""A task's id, and the number of the attempt (from 0)."""

CHUNK = 256
"""Evaluation episodes after which the players start again with empty caches.

The last digits of a probability depend on what is computed in the same batch, and so on what is cached. When a log is
continued, its unfinished chunk is played again from the chunk's beginning, in the same batches as in an uninterrupted
run. So both write the same bytes, and a kill costs at most the time of one chunk.
"""


@dataclass(frozen=True)
class EvaluationLog:
    """One log of an arm: its file, and the tasks that belong in it."""

    path: Path
    split: str
    stage: str
    sampling: str
    tasks: tuple[Task, ...]
    repeats: int = 1

    def wanted(self) -> list[Attempt]:
        """Return the attempts that belong in the log: every task once, then every task again, and so on."""
        return [(task.id, repeat) for repeat in range(self.repeats) for task in self.tasks]

    def left(self) -> set[Attempt]:
        """Return the attempts that are missing in the log."""
        drop_half_line(self.path)  # of a run that was killed while it wrote
        if not self.path.exists():
            return set(self.wanted())
        return set(self.wanted()).difference(map(attempt_of, read_episodes(self.path)))


def attempt_of(episode: Episode) -> Attempt:
    """Return the task and the attempt's number of an evaluation episode."""
    return episode.task.id, int(episode.provenance.get("repeat", 0))


def evaluations(recipe: Recipe, run: RunFolder, env: TextEnv, seed: int, name: str) -> Iterator[EvaluationLog]:
    """Yield all evaluation logs of an arm: one per split, stage and sampling."""
    for split in recipe.eval.splits:
        for stage in recipe.eval.stages or (env.stages[-1],):
            tasks = tuple(tasks_named(env, split, stage)[: recipe.eval.episodes or None])
            for sampling in recipe.eval.sampling:
                path = run.evaluation(name, seed, split, stage, sampling)
                yield EvaluationLog(path, split, stage, sampling, tasks, recipe.eval.repeats)


def evaluate_arm(
    build: Build, arm: Arm, policy: Source | None, reflector: Source | None, teaching: Path | None
) -> Timings:
    """Play an arm on every split, stage and sampling. Unfinished logs are continued. Returns timings.

    The arguments are those of `stages.evaluation`.
    """
    context, recipe, seed, name, progress = build.context, build.recipe, build.seed, build.name, build.progress
    env, timings = make(recipe.env), Timings()
    models = load_pair(recipe, seed, policy, reflector, arm, teaching)
    planned = list(evaluations(recipe, context.run, env, seed, name))
    origin = provenance(recipe, arm, policy, reflector)
    with pool_of(recipe) as envs:
        # An arm that asks an endpoint is not fitted, since each request may cost money.
        fits = recipe.eval.temperature == "fitted" and models[0] is not None and not arm.asked
        if fits and any(log.left() for log in planned):
            greedy = build_players(recipe, context.run.path, name, arm, models, 0.0)
            fit_arm(recipe, context.run, name, seed, greedy, envs)
        for index, log in enumerate(planned):
            about = {"arm": name, "seed": seed, "split": log.split, "sampling": log.sampling, **origin}
            start, count, stats = time.perf_counter(), 0, ComputeStats(models)

            def players(temperature: float, stats: ComputeStats = stats) -> tuple[Player, Player | None]:
                seats = build_players(recipe, context.run.path, name, arm, models, temperature)
                return stats.watch(calibrated(seats, calibration_of(recipe, context.run, name, seed)))

            for _ in _play(recipe, log, about, envs, players):
                count += 1
                progress(index, len(planned), f"{log.split} {log.stage} {log.sampling}, {count} episodes")
            if count:
                seconds = (time.perf_counter() - start) / count
                labels = {key: about[key] for key in ("arm", "seed", "split", "sampling")}
                timings.append({**labels, "stage": log.stage, "episodes": count, "seconds": seconds, **stats.done()})
            progress(index + 1, len(planned), f"{log.split} {log.stage} {log.sampling}")
    return timings


def remaining_tasks(context: Context, seed: int, name: str) -> bool:
    """Tell whether an arm still has tasks to play."""
    env = make(context.recipe.env)
    logs = evaluations(context.recipe, context.run, env, seed, name)
    return any(log.left() for log in logs)


def check_env(recipe: Recipe) -> str:
    """Refuse splits, stages, teachers and milestones that the environment lacks, and tasks that are in two splits.

    Returns:
        The digest of its tasks.

    Raises:
        UserError: names the key, the arms or the task.
    """
    env, rl = make(recipe.env), recipe.rl
    check_teacher(recipe, env)
    if any(arm.rl is not None for arm in select_arms(recipe.arms, recipe).values()):
        # Made only for their errors, which RL would otherwise raise hours later.
        make_curriculum(rl, env)
        RewardShaping(rl, env)
    if is_labelled(recipe) and (tasks := env.tasks("train")):
        require_labels(len(advance(env, tasks[0], None, 0).observation.actions))
    for stage in recipe.eval.stages:
        if stage not in env.stages:
            raise UserError(f"eval.stages: unknown stage {stage!r}{suggestion(stage, env.stages)}")
    for split in recipe.eval.splits:
        if not tasks_named(env, split):
            raise UserError(f"eval.splits: the environment has no tasks in {split!r}")
    for stage in env.stages:
        validation, test = env.tasks("validation", stage), env.tasks("test", stage)
        check_disjoint(map(unplayed, env.tasks("train", stage)), [*validation, *test])
        check_disjoint(map(unplayed, validation), test)
    return digest_of_tasks(env)


def unplayed(task: Task) -> Episode:
    """Return an episode of a task without any step."""
    return Episode(task, (), False, False, 0)


def is_labelled(recipe: Recipe) -> bool:
    """Tell whether some arm's policy chooses actions by their labels."""
    plays = any(arm.player == "policy" for arm in select_arms(recipe.arms, recipe).values())
    return plays and recipe.play.scoring == "enumeration"


def digest_of_tasks(env: TextEnv) -> str:
    """Return a digest of an environment's tasks in all stages and splits, in order."""
    listed = []
    for stage in env.stages:
        for split in SPLITS:
            listed.append([(task.id, task.payload) for task in env.tasks(split, stage)])
    return hashlib.sha256(json.dumps(listed, sort_keys=True, default=str).encode()).hexdigest()[:16]


def require_same_tasks(recipe: Recipe, tasks: str) -> None:
    """Refuse an environment whose tasks differ from those in the process that began the run.

    Args:
        tasks: digest of the tasks in that process; "" if it is not known.

    Raises:
        UserError: names the environment.
    """
    if tasks and digest_of_tasks(make(recipe.env)) != tasks:
        raise UserError(f"environment {recipe.env['name']!r}: {OTHER_TASKS}")


def check_teacher(recipe: Recipe, env: TextEnv) -> None:
    """Refuse arms that need an expert, analyst, oracle or baseline if the environment's teacher has none.

    Raises:
        UserError: names the arms and the missing ability.
    """
    has, teach = set(env.teacher.abilities()), recipe.teach
    needed: dict[str, list[str]] = defaultdict(list)
    for name, arm in select_arms(recipe.arms, recipe).items():
        if arm.is_taught and teach.by == "teacher":
            needed["expert"].append(name)
        if arm.is_taught and arm.reflector and (teach.by, teach.reflections) == ("teacher", "given"):
            needed["analyst"].append(name)
        if arm.player == "oracle" and "oracle" not in has:
            needed["expert"].append(name)  # the expert plays in the oracle's place
        elif arm.player in ABILITIES:
            needed[arm.player].append(name)
        played = recipe.eval.splits if arm.player in ABILITIES and arm.player in has else ()
        taught = ("train", "validation") if arm.is_taught and teach.by == "teacher" and "expert" in has else ()
        for split in (*taught, *played):
            if not env.teacher.teaches(split):
                about = (
                    f"the teacher of {type(env).__name__} does not know {split} tasks, which arm {name!r} would need"
                )
                raise UserError(f"{about}; leave it out, or that split: {option('eval.splits', ['train'])}")
    for ability in ABILITIES:
        names = needed[ability]
        if names and ability not in has:
            arms = f"arm{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
            about = f"{type(env).__name__} has no {ability}, which {arms} would need"
            teach_option = option("teach", {"by": "log", "log": ["demos.jsonl"]})
            raise UserError(
                f"{about}; give its teacher one (docs/own-environment.md), teach by demonstrations (`reflectrl play "
                f"ENV --record demos.jsonl`, then {teach_option} {option('arms', ['no-reflection'])}), or "
                f"leave them out: {option('arms', ['rl-only'])}"
            )


def provenance(recipe: Recipe, arm: Arm, policy: Source | None, reflector: Source | None) -> dict[str, Any]:
    """Return the provenance of an arm's episodes: base model, trained players, endpoint, and package versions.

    Args:
        policy: the policy with which the arm plays.
        reflector: its reflector.
    """
    origin: dict[str, Any] = {"model": None, "policy": None, "reflector": None}
    if arm.player == "policy":
        origin["model"] = recipe.model.source_of("policy")
    if policy is not None and not is_base(policy):
        origin["policy"] = name_of(policy)
    if reflector is not None:
        origin["reflector"] = name_of(reflector)
    if arm.asked:
        origin["endpoint"] = arm.asked
    origin["versions"] = {package: version(package) for package in ("reflectrl", "torch", "transformers")}
    return origin


def _play(
    recipe: Recipe,
    log: EvaluationLog,
    about: dict[str, Any],
    envs: EnvPool,
    players: Callable[[float], tuple[Player, Player | None]],
) -> Iterator[Episode]:
    """Play the missing attempts of a log, and append them to it."""
    left = distributed.first(log.left)
    log.path.parent.mkdir(parents=True, exist_ok=True)
    temperature = 0.0 if log.sampling == "greedy" else 1.0
    with EpisodeLog(log.path) as file:
        tasks, wanted = {task.id: task for task in log.tasks}, log.wanted()
        for start in range(0, len(wanted), CHUNK):
            chunk = wanted[start : start + CHUNK]
            if left.isdisjoint(chunk):
                continue
            jobs = [_job(tasks[name], repeat, log, about) for name, repeat in chunk]
            batch = min(recipe.eval.batch, len(jobs))
            for episode in rollout(jobs, envs, *players(temperature), batch):
                if attempt_of(episode) in left:
                    file.append(episode)
                yield episode


def _job(task: Task, number: int, log: EvaluationLog, about: dict[str, Any]) -> Job:
    """Return the job of an attempt at a task. Attempt 0 is the same as in a run without repeats."""
    names = (about["seed"], "eval", task.id, log.sampling)
    if number == 0:
        return Job(task, named_seed(*names), about)
    return Job(task, named_seed(*names, number), {**about, "repeat": number})


class ComputeStats:
    """Counter of what the models of an arm compute from now on, and of what their caches save."""

    def __init__(self, models: Models) -> None:
        self.models = dict(zip(("policy", "reflector"), models, strict=True))
        self.before = {role: lm.counters.copy() for role, lm in self.models.items() if lm is not None}
        self.players: dict[str, list[Any]] = {"policy": [], "reflector": []}

    def watch(self, players: tuple[Player, Player | None]) -> tuple[Player, Player | None]:
        """Count the cache hits of these players as well."""
        for role, player in zip(self.players, players, strict=True):
            self.players[role].append(player)
        return players

    def done(self) -> dict[str, Any]:
        """Return by role: tokens read, reused, written and guessed; prompts looked up and found in the cache; peak
        cache size.
        """
        return {role: self._of(role) for role in self.before}

    def _of(self, role: str) -> dict[str, int]:
        lm, players = self.models[role], self.players[role]
        assert lm is not None
        counters = lm.counters.since(self.before[role])
        return {
            "read": counters.encoded,
            "reused": counters.reused,
            "written": counters.decoded,
            "guessed": counters.drafted,
            "asked": sum(player.lookups for player in players),
            "remembered": sum(player.hits for player in players),
            "kept_bytes": max((player.pool.peak for player in players), default=0),
        }
