"""Parts of offline arms: the log of mixed quality, the reference that imitates it and its view of it, the policies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import torch

from reflectrl.config import OfflineConfig, Recipe
from reflectrl.config.offline import LogAlgorithm
from reflectrl.envs import make
from reflectrl.envs.base import TextEnv
from reflectrl.envs.pool import EnvPool
from reflectrl.episodes import (
    read_episodes,
    task_key,
    to_line,
    with_reflections,
    with_target_returns,
    without_reflections,
)
from reflectrl.learn.checkpoint import drop_state, write_folder, write_text
from reflectrl.learn.completions import Dataset, step_dataset
from reflectrl.learn.expert_iteration import play, train_expert_iteration
from reflectrl.learn.offline import Log, train_offline
from reflectrl.learn.reference_cache import Outcomes, ReferenceCache, cached_reference, score_reference
from reflectrl.learn.rollouts import flatten
from reflectrl.learn.utterance_critic import cached_critic
from reflectrl.learn.validation import evaluate_policy, evenly, success_rate
from reflectrl.models.load import load_model
from reflectrl.pipeline.arms import Arm
from reflectrl.pipeline.layout import RunFolder
from reflectrl.pipeline.metrics import MetricsFile
from reflectrl.pipeline.players import base_source, make_policy
from reflectrl.pipeline.progress import Tick
from reflectrl.players import Policy, TargetReturnPlayer
from reflectrl.types import Episode, Sampling, named_seed

FROM_BASE = ("reference", "rvs")
"""What begins with the base model; all else begins with the reference."""


def log_part(recipe: Recipe, run: RunFolder, seed: int, name: str, tick: Tick) -> None:
    """Write the log: the teacher's trajectories, steady and noisy, then episodes that the SFT policy plays."""
    demonstrations = read_episodes(run.teach(seed, "train"))
    episodes = [episode for episode in demonstrations if episode.provenance.get("kind") == "trajectory"]
    if recipe.offline.log_episodes:
        policy = _policy(recipe, run.checkpoint(seed, "plain"), seed)
        with EnvPool(partial(make, recipe.env), recipe.env_workers) as envs:
            tasks = make(recipe.env).tasks("train")
            played = play(policy, envs, tasks, recipe.offline.log_episodes, named_seed(seed, "log"))
        episodes += [replace(episode, provenance={"player": "policy", "policy": "plain"}) for episode in played]
    write_text(run.log(seed), "".join(to_line(episode) + "\n" for episode in episodes))
    tick(len(episodes), len(episodes), f"{success_rate(episodes):.0%} of them won")


def replayed_log(recipe: Recipe, run: RunFolder, seed: int, arm: Arm) -> list[Episode]:
    """What online RL of an arm replays of the log, as the arm's policy would have seen it."""
    if not recipe.rl.replay_log:
        return []
    seen = with_reflections if arm.reflection else without_reflections
    return list(seen(read_episodes(run.log(seed))))


def offline_part(recipe: Recipe, run: RunFolder, seed: int, part: str, tick: Tick) -> None:
    """Learn one part from the log: the reference, what it thinks of the log, or the policy of an arm."""
    kind = part.removeprefix("offline-")
    reference = run.checkpoint(seed, "offline-reference")
    policy = _policy(recipe, base_source(recipe, run, seed) if kind in FROM_BASE else reference, seed)
    config = settings_of(recipe, kind)
    learner, learning_seed = run.learner(seed, part), named_seed(seed, part)
    arm, name = (None, "offline_value") if kind == "value" else (part, "offline")
    shared = {"part": name, "seed": seed, "arm": arm}
    with ExitStack() as closing:
        envs = closing.enter_context(EnvPool(partial(make, recipe.env), recipe.env_workers))
        file = closing.enter_context(MetricsFile(run.part_metrics(seed, part), learner, shared))
        note = partial(_note, file, tick, config)
        if kind == "value":
            _reference_cache(recipe, run, seed, policy, envs, note)
            return
        evaluate = partial(_evaluate, recipe, policy, kind, envs, seed)
        if kind == "expert-iteration":
            tasks = make(recipe.env).tasks("train")
            train_expert_iteration(policy, envs, tasks, config, learning_seed, note, learner, evaluate)
        else:
            data, known = _data(recipe, run, seed, kind, policy, envs, note)
            train_offline(data, known, config, learning_seed, note, learner, evaluate)
    write_folder(run.checkpoint(seed, part), partial(policy.lm.save, part=part, seed=seed))
    drop_state(learner)


def settings_of(recipe: Recipe, kind: str) -> OfflineConfig:
    """The settings of a part. Imitation from the base model learns as SFT does; all arms have the same steps in all."""
    config, sft = recipe.offline, recipe.sft
    if kind not in FROM_BASE:
        return replace(config, algorithm=cast(LogAlgorithm, kind)) if kind in get_args(LogAlgorithm) else config
    steps = config.reference_steps + (config.steps if kind == "rvs" else 0)
    rates = {name: getattr(sft, name) for name in ("optimizer", "lr", "muon_lr", "weight_decay", "batch_size")}
    return replace(config, algorithm="nll", steps=steps, **rates)


def _policy(recipe: Recipe, source: str | Path, seed: int) -> Policy:
    lm = load_model(source, recipe.model, "policy", named_seed(seed, "policy"))
    return make_policy(recipe, lm, Sampling(recipe.rl.temperature))


def _data(
    recipe: Recipe, run: RunFolder, seed: int, kind: str, policy: Policy, envs: Callable[[], TextEnv], note: Log
) -> tuple[Dataset, ReferenceCache]:
    """The log as data of a part, and what the reference thinks of it (nothing, before there is one)."""
    if kind == "archer":
        return _criticised(recipe, run, seed, policy)
    if kind not in FROM_BASE:
        return _reference_cache(recipe, run, seed, policy, envs, note)
    episodes = read_episodes(run.log(seed))
    seen = with_target_returns(episodes, recipe.offline.gamma) if kind == "rvs" else without_reflections(episodes)
    data = step_dataset(policy, list(seen), recipe.offline)
    return data, score_reference(data, torch.zeros(len(data)))


def _reference_cache(
    recipe: Recipe, run: RunFolder, seed: int, reference: Policy, envs: Callable[[], TextEnv], note: Log
) -> tuple[Dataset, ReferenceCache]:
    data = step_dataset(reference, list(without_reflections(read_episodes(run.log(seed)))), recipe.offline)
    folder = run.checkpoint(seed, "offline-value")
    played = partial(_played, recipe, reference, envs, data, seed) if recipe.offline.value_from == "rollouts" else None
    return data, cached_reference(folder, data, recipe.offline, named_seed(seed, "value"), note, played)


def _criticised(recipe: Recipe, run: RunFolder, seed: int, reference: Policy) -> tuple[Dataset, ReferenceCache]:
    """The log as data, and what an utterance-level critic thinks of it; its metrics are written when it is made."""
    name, episodes = "offline-critic", list(without_reflections(read_episodes(run.log(seed))))
    data = step_dataset(reference, episodes, recipe.offline)
    noted: list[dict[str, float]] = []
    folder, fitting_seed = run.checkpoint(seed, name), named_seed(seed, "critic")
    known = cached_critic(folder, data, episodes, recipe.offline, fitting_seed, noted.append)
    if noted:
        shared = {"part": "offline_critic", "seed": seed, "arm": None}
        with MetricsFile(run.part_metrics(seed, name), run.learner(seed, name), shared) as file:
            for metrics in noted:
                file.write(metrics)
    return data, known


def _played(recipe: Recipe, reference: Policy, envs: Callable[[], TextEnv], data: Dataset, seed: int) -> Outcomes:
    """What the reference earns from each state of the episodes that it plays on training and validation tasks."""
    env, config = make(recipe.env), recipe.offline
    tasks = [*env.tasks("train"), *env.tasks("validation")]
    episodes = play(reference, envs, tasks, config.value_episodes, named_seed(seed, "value"))
    steps = flatten(reference, episodes, config.gamma)
    units = [task_key(episode.task) for episode in episodes for _ in episode.steps]
    return Outcomes(steps.prompts, data.affine(steps.returns_N), units)


def _evaluate(recipe: Recipe, policy: Policy, kind: str, envs: Callable[[], TextEnv], seed: int) -> dict[str, float]:
    """Success and return of the policy as it is on validation tasks."""
    tasks = evenly(make(recipe.env).tasks("validation"), recipe.offline.eval_episodes)
    promise = TargetReturnPlayer(recipe.offline.target_return) if kind == "rvs" else None
    return evaluate_policy(policy, promise, envs, tasks, recipe.rl.eval_sampling, seed)


def _note(file: MetricsFile, tick: Tick, config: OfflineConfig, metrics: dict[str, Any]) -> None:
    file.write(metrics)
    if "value_loss" in metrics:
        tick(int(metrics["step"]), config.value_epochs, f"explained variance {metrics['explained_variance']:.2f}")
    else:
        total = max(int(metrics["steps"]), int(metrics["step"]))
        tick(int(metrics["step"]), total, f"validation {metrics['eval_success']:.0%}")
