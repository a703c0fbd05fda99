"""Builders of distillation: a pair's episodes on training tasks, and the policy that learns from them."""

from __future__ import annotations

from functools import partial
from typing import Any

from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.episodes import read_episodes, to_line
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import named_seed
from reflectrl.learn.checkpoint import drop_state, write_folder, write_text
from reflectrl.learn.validation import evaluate_policy, evenly, success_rate
from reflectrl.methods.distill.arms import MODELS, Distilled
from reflectrl.methods.distill.config import distill_settings
from reflectrl.methods.distill.learn import targets, train_distilled
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.runs.arms import chosen, played_model
from reflectrl.runs.artifacts import Artifact
from reflectrl.runs.evaluation import provenance
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.metrics import MetricsFile
from reflectrl.runs.players import load_models, make_policy, players_of
from reflectrl.runs.progress import Tick


def episodes(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Let the pair play the training tasks."""
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name.removesuffix("-episodes")
    config, pair = distill_settings(recipe), MODELS[name].pair
    players = players_of(recipe, chosen([pair])[pair], load_models(recipe, run, seed, pair), config.temperature)
    about = {"arm": pair, "seed": seed, "split": "train", **provenance(recipe, pair)}
    jobs = [
        Job(task, named_seed(seed, name, task.id, i), about)
        for task in make(recipe.env).tasks("train")
        for i in range(config.episodes)
    ]
    order, played = {job.seed: i for i, job in enumerate(jobs)}, []
    with EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs:
        for episode in rollout(jobs, envs, *players, batch=recipe.eval.batch):
            played.append(episode)
            tick(len(played), len(jobs), f"{success_rate(played):.0%} of them won")
    path = run.path / artifact.outputs[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    played.sort(key=lambda episode: order[episode.seed])
    write_text(path, "".join(f"{to_line(episode)}\n" for episode in played))


def policy(context: Context, artifact: Artifact, tick: Tick) -> None:
    """Train one policy of `MODELS` on the episodes of its pair."""
    recipe, run, seed, name = context.recipe, context.run, artifact.seed, artifact.name
    config, learner = distill_settings(recipe), run.learner(seed, name)
    rows = targets(read_episodes(run.path / f"episodes/{name}-seed{seed}.jsonl"), config)
    learning, env = _student(recipe, run, seed, MODELS[name], name), make(recipe.env)
    tasks = evenly(env.tasks("validation"), config.eval_episodes)
    with (
        EnvPool(partial(make, recipe.env), recipe.env_workers, recipe.engine) as envs,
        MetricsFile(run.metrics(seed, name), learner, {"kind": "distill", "seed": seed, "arm": name}) as file,
    ):

        def note(metrics: dict[str, Any]) -> None:
            file.write(metrics)
            tick(metrics["step"], config.steps, f"validation {metrics['eval_success']:.0%}")

        evaluate = partial(evaluate_policy, learning, None, envs, tasks, recipe.rl.eval_sampling, seed)
        train_distilled(learning, rows, config, recipe.sft, named_seed(seed, name), note, evaluate, learner)
    write_folder(run.checkpoint(seed, name), partial(learning.lm.save, artifact=name, seed=seed))
    drop_state(learner)


def _student(recipe: Recipe, run: RunFolder, seed: int, row: Distilled, name: str) -> Policy:
    """Load the student with its initial weights: the weights of the pair's policy or of the pair's reflector."""
    start = distill_settings(recipe).start
    source = played_model(row.pair) if start == "policy" else chosen([row.pair])[row.pair].reflector
    return make_policy(recipe, load_model(run.checkpoint(seed, source), recipe.model, "policy", named_seed(seed, name)))
