"""Builders of offline learning: a log of mixed quality, the reference that imitates it, its value, and the policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import torch

from reflectrl.core import distributed
from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.episodes import (
    read_episodes,
    task_key,
    to_line,
    without_reflections,
)
from reflectrl.core.teach import Demonstration
from reflectrl.core.types import Sampling, named_seed
from reflectrl.learn.checkpoint import drop_state, write_folder, write_text
from reflectrl.learn.steps import flatten
from reflectrl.learn.trainer import Log, Verdict
from reflectrl.learn.validation import evaluate_policy, evenly, success_rate
from reflectrl.methods.offline.arms import MODELS, Offline
from reflectrl.methods.offline.completions import Dataset, step_dataset
from reflectrl.methods.offline.config import LogAlgorithm, OfflineConfig, offline_settings
from reflectrl.methods.offline.expert_iteration import play, train_expert_iteration
from reflectrl.methods.offline.learn import train_offline
from reflectrl.methods.offline.reference_cache import Outcomes, ReferenceCache, cached_reference, score_reference
from reflectrl.methods.offline.target_return import target_return_player, with_target_returns
from reflectrl.methods.offline.utterance_critic import cached_critic
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.runs.arms import BASE
from reflectrl.runs.artifacts import Artifact
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.metrics import MetricsFile
from reflectrl.runs.players import base_source, instructed, make_policy
from reflectrl.runs.progress import Tick
from reflectrl.runs.training import finished_lines, planned_demonstrations


def log(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Write the log: the teacher's trajectories, with and without noise, then episodes played by the SFT policy."""
    recipe, run, seed = context.recipe, context.run, artifact.seed
    taught = read_episodes(run.teach(seed, "train"))
    episodes = [episode for episode in taught if episode.provenance.get("kind") != "negative"]  # negatives break off
    if offline_settings(recipe).log_episodes:
        player = _policy(recipe, run.checkpoint(seed, "plain"), seed)
        with EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs:
            tasks = make(recipe.env).tasks("train")
            played = play(player, envs, tasks, offline_settings(recipe).log_episodes, named_seed(seed, "log"))
        episodes += [replace(episode, provenance={"player": "policy", "policy": "plain"}) for episode in played]
    write_text(run.log(seed), "".join(to_line(episode) + "\n" for episode in episodes))
    tick(len(episodes), len(episodes), f"{success_rate(episodes):.0%} of them won")


def remaining_log(context: Context, artifact: Artifact) -> bool:
    """Return whether episodes are missing from the log."""
    recipe, env = context.recipe, make(context.recipe.env)
    taught = sum(
        (one.kind if isinstance(one, Demonstration) else one.provenance.get("kind")) != "negative"
        for one in planned_demonstrations(recipe, env, artifact.seed, "train")
    )
    planned = taught + offline_settings(recipe).log_episodes * len(env.tasks("train"))
    return finished_lines(context.run.log(artifact.seed)) < planned


def value(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Fit the reference's value, and cache log-probabilities and advantages of every step of the log."""
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    reference = _policy(recipe, run.checkpoint(seed, "offline-reference"), seed)
    shared = {"kind": "offline_value", "seed": seed, "arm": None}
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        MetricsFile(run.metrics(seed, name), run.learner(seed, name), shared) as file,
    ):
        _reference_cache(recipe, run, seed, reference, envs, partial(_note, file, tick, offline_settings(recipe)))


@distributed.on_all_ranks
def policy(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Train one policy of `MODELS` from the log."""
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    model = MODELS[name]
    source = base_source(recipe, run, seed, "policy") if model.start == BASE else run.checkpoint(seed, model.start)
    learning = _policy(recipe, source, seed)
    config, learner, learning_seed = settings_of(recipe, model), run.learner(seed, name), named_seed(seed, name)
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        MetricsFile(run.metrics(seed, name), learner, {"kind": "offline", "seed": seed, "arm": name}) as file,
    ):
        note = partial(_note, file, tick, config)
        evaluate = partial(_evaluate, recipe, learning, model.algorithm, envs, seed)
        if model.algorithm == "expert-iteration":
            tasks = make(recipe.env).tasks("train")
            train_expert_iteration(learning, envs, tasks, config, learning_seed, note, learner, evaluate)
        else:
            data, known = _data(recipe, run, seed, model, learning, envs, note)
            train_offline(data, known, config, learning_seed, note, learner, evaluate)
    write_folder(run.checkpoint(seed, name), learning.lm.saver(artifact=name, seed=seed))
    drop_state(learner)


def settings_of(recipe: Recipe, model: Offline) -> OfflineConfig:
    """Return the settings of a policy. Starting from the base model, it uses the optimiser settings of [sft].

    All arms take the same number of steps in total, counting the steps that made the reference.
    """
    config, sft = offline_settings(recipe), recipe.sft
    if model.start != BASE:
        known = model.algorithm in get_args(LogAlgorithm)
        return replace(config, algorithm=cast(LogAlgorithm, model.algorithm)) if known else config
    steps = config.reference_steps + (config.steps if model.algorithm == "rvs" else 0)
    rates = {name: getattr(sft, name) for name in ("optimizer", "lr", "muon_lr", "weight_decay", "batch_size")}
    return replace(config, algorithm="nll", steps=steps, **rates)


def _policy(recipe: Recipe, source: str | Path, seed: int) -> Policy:
    lm = instructed(recipe, load_model(source, recipe.model, "policy", named_seed(seed, "policy")), "policy")
    return make_policy(recipe, lm, Sampling(recipe.rl.temperature))


def _data(
    recipe: Recipe, run: RunFolder, seed: int, model: Offline, policy: Policy, envs: Callable[[], TextEnv], note: Log
) -> tuple[Dataset, ReferenceCache]:
    """Return the log as a policy's data, and the reference's view of it. Before a reference exists, V is 0."""
    if model.algorithm == "archer":
        return _criticised(recipe, run, seed, policy)
    if model.start != BASE:
        return _reference_cache(recipe, run, seed, policy, envs, note)
    episodes, rvs = read_episodes(run.log(seed)), model.algorithm == "rvs"
    seen = with_target_returns(episodes, offline_settings(recipe).gamma) if rvs else without_reflections(episodes)
    data = step_dataset(policy, list(seen), offline_settings(recipe))
    return data, score_reference(data, torch.zeros(len(data)))


def _reference_cache(
    recipe: Recipe, run: RunFolder, seed: int, reference: Policy, envs: Callable[[], TextEnv], note: Log
) -> tuple[Dataset, ReferenceCache]:
    data = step_dataset(reference, list(without_reflections(read_episodes(run.log(seed)))), offline_settings(recipe))
    folder = run.checkpoint(seed, "offline-value")
    played = (
        partial(_played, recipe, reference, envs, data, seed)
        if offline_settings(recipe).value_from == "rollouts"
        else None
    )
    config, fitting_seed = offline_settings(recipe), named_seed(seed, "value")
    return data, distributed.first(lambda: cached_reference(folder, data, config, fitting_seed, note, played))


def _criticised(recipe: Recipe, run: RunFolder, seed: int, reference: Policy) -> tuple[Dataset, ReferenceCache]:
    """Return the log as data, and an utterance-level critic's view of it. Fitting the critic writes its metrics."""
    name, episodes = "offline-critic", list(without_reflections(read_episodes(run.log(seed))))
    data = step_dataset(reference, episodes, offline_settings(recipe))
    noted: list[dict[str, float]] = []
    folder, fitting_seed = run.checkpoint(seed, name), named_seed(seed, "critic")
    config = offline_settings(recipe)
    known = distributed.first(lambda: cached_critic(folder, data, episodes, config, fitting_seed, noted.append))
    if noted:
        shared = {"kind": "offline_critic", "seed": seed, "arm": None}
        with MetricsFile(run.metrics(seed, name), run.learner(seed, name), shared) as file:
            for metrics in noted:
                file.write(metrics)
    return data, known


def _played(recipe: Recipe, reference: Policy, envs: Callable[[], TextEnv], data: Dataset, seed: int) -> Outcomes:
    """Play the reference on training and validation tasks; return its reward-to-go from each state."""
    env, config = make(recipe.env), offline_settings(recipe)
    tasks = [*env.tasks("train"), *env.tasks("validation")]
    episodes = play(reference, envs, tasks, config.value_episodes, named_seed(seed, "value"))
    steps = flatten(reference, episodes, config.gamma)
    units = [task_key(episode.task) for episode in episodes for _ in episode.steps]
    return Outcomes(steps.prompts, data.affine(steps.returns_N), units)


def _evaluate(
    recipe: Recipe, policy: Policy, algorithm: str, envs: Callable[[], TextEnv], seed: int
) -> dict[str, float]:
    """Return success rate and mean return of the current policy on validation tasks."""
    tasks = evenly(make(recipe.env).tasks("validation"), offline_settings(recipe).eval_episodes)
    asking = target_return_player(recipe) if algorithm == "rvs" else None
    return evaluate_policy(policy, asking, envs, tasks, recipe.rl.eval_sampling, seed)


def _note(file: MetricsFile, tick: Tick, config: OfflineConfig, metrics: dict[str, Any]) -> Verdict:
    verdict = file.write(metrics)
    if "value_loss" in metrics:
        tick(int(metrics["step"]), config.value_epochs, f"explained variance {metrics['explained_variance']:.2f}")
    else:
        total = max(int(metrics["steps"]), int(metrics["step"]))
        tick(int(metrics["step"]), total, f"validation {metrics['eval_success']:.0%}")
    return verdict
