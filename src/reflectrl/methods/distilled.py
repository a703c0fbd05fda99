"""Distillation: a policy learns to choose, without reflections, what a pair chose with its reflector."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from reflectrl.core.types import UserError, named_seed
from reflectrl.methods.distill.config import DistillConfig, distill_settings
from reflectrl.runs.arms import Arm, players_of, select_arms
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact


@artifact("distill", "rl", "episodes/{student}-seed{seed}.jsonl",
          settings=(*PLAYED, "distill.episodes", "distill.temperature"))  # fmt: skip
def pair_episodes(build: Build, *, reflector: Source, policy: Source, pair: str, student: str) -> None:
    """Let a pair play the training tasks.

    Args:
        pair: the arm whose players they are.
        student: name of the policy that is to learn from the episodes.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.core.episodes import to_line
    from reflectrl.core.rollout import Job, rollout
    from reflectrl.learn.checkpoint import write_text
    from reflectrl.learn.validation import success_rate
    from reflectrl.runs.evaluation import provenance
    from reflectrl.runs.players import combined, load_pair

    recipe, seed = build.recipe, build.seed
    config, arm = distill_settings(recipe), select_arms([pair])[pair]
    players = combined(recipe, arm, load_pair(recipe, seed, policy, reflector, arm), config.temperature)
    about = {"arm": pair, "seed": seed, "split": "train", **provenance(recipe, arm, policy, reflector)}
    jobs = [
        Job(task, named_seed(seed, student, task.id, i), about)
        for task in make(recipe.env).tasks("train")
        for i in range(config.episodes)
    ]
    order, played = {job.seed: i for i, job in enumerate(jobs)}, []
    with pool_of(recipe) as envs:
        for episode in rollout(jobs, envs, *players, batch=recipe.eval.batch):
            played.append(episode)
            build.tick(len(played), len(jobs), f"{success_rate(played):.0%} of them won")
    played.sort(key=lambda episode: order[episode.seed])
    write_text(build.out, "".join(f"{to_line(episode)}\n" for episode in played))


@artifact("distill", "rl", CHECKPOINT, settings=(*PLAYED, "sft", "distill", "rl.eval_sampling"))
def distilled(build: Build, *, reflector: Source, policy: Source, episodes: Path) -> None:
    """Train a policy to choose, without reflections, what a pair chose with its reflector.

    Args:
        reflector: the pair's reflector, from which it may start.
        policy: the pair's policy, from which it may start.
        episodes: the pair's episodes.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.core.episodes import read_episodes
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.validation import evaluate_policy, evenly
    from reflectrl.methods.distill.learn import targets, train_distilled
    from reflectrl.models.load import load_model
    from reflectrl.runs.metrics import MetricsFile
    from reflectrl.runs.players import make_policy

    recipe, seed, name, config = build.recipe, build.seed, build.name, distill_settings(build.recipe)
    rows = targets(read_episodes(episodes), config)
    start = policy if config.start == "policy" else reflector
    student = make_policy(recipe, load_model(start, recipe.model, "policy", named_seed(seed, name)))
    tasks = evenly(make(recipe.env).tasks("validation"), config.eval_episodes)
    with (
        pool_of(recipe) as envs,
        MetricsFile(build.metrics, build.learner, {"kind": "distill", "seed": seed, "arm": name}) as file,
    ):

        def note(metrics: dict[str, Any]) -> None:
            file.write(metrics)
            build.tick(metrics["step"], config.steps, f"validation {metrics['eval_success']:.0%}")

        evaluate = partial(evaluate_policy, student, None, envs, tasks, recipe.rl.eval_sampling, seed)
        train_distilled(student, rows, config, recipe.sft, named_seed(seed, name), note, evaluate, build.learner)
    write_folder(build.out, partial(student.lm.save, artifact=name, seed=seed))
    drop_state(build.learner)


def student_of(pair: str, name: str, plan: Plan) -> Artifact:
    """Plan a pair, its episodes, and the policy that learns from them.

    Args:
        pair: the arm whose players are imitated.
        name: name of the policy.
    """
    if distill_settings(plan.recipe).start == "reflector" and plan.recipe.model.lora_rank:
        raise UserError("distill.start is 'reflector'; with model.lora_rank above 0 it must be 'policy'")
    policy, reflector, _ = players_of(plan, pair, select_arms([pair])[pair])
    episodes = pair_episodes(plan, f"{name}-episodes", reflector=reflector, policy=policy, pair=pair, student=name)
    return distilled(plan, name, reflector=reflector, policy=policy, episodes=episodes)


ARMS = {
    "distilled": Arm(
        "the full method's choices, learned without its reflector", partial(student_of, "reflect-rl", "distilled")
    ),
    "distilled-sft": Arm(
        "the choices of both players after SFT, learned without the reflector",
        partial(student_of, "sft", "distilled-sft"),
    ),
}
SECTIONS = {"distill": DistillConfig}
