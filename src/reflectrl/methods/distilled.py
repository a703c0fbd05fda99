"""Distillation: a policy learns to choose, without reflections, what a pair chose with its reflector.

In every state s of its episodes, the pair chose by pi(a|s, r) after the reflection r. The policy minimises

    KL(pi(.|s, r) || pi_theta(.|s)) = sum_a pi(a|s, r) (log pi(a|s, r) - log pi_theta(a|s))

over the listed actions. Sources: policy distillation (Rusu et al. 2016, arXiv 1511.06295), and context distillation,
in which the student does not see a part of the teacher's prompt (Snell et al. 2022, arXiv 2209.15189).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reflectrl.core.config.rules import Count, NonNegative
from reflectrl.core.types import Episode, Observation, UserError, named_seed
from reflectrl.runs.arms import Arm, players_of, select_arms
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    import numpy as np
    from torch import Tensor

    from reflectrl.core.config import Recipe, SFTConfig
    from reflectrl.learn.trainer import Log, Trainer
    from reflectrl.models.players import Policy


@dataclass(frozen=True)
class DistillConfig:
    """Training of the arms "distilled" and "distilled-sft", which play without a reflector. Optimiser, learning rates
    and their schedule come from [sft].
    """

    episodes: Count = 2
    """Episodes that the pair plays per training task."""
    temperature: NonNegative = 1.0
    """Sampling temperature of the pair, for its episodes and for the target probabilities. With 0 the pair
    plays greedily, so one episode per task is enough, and the targets are its probabilities at temperature 1."""
    won_only: bool = False
    """Learn only from the episodes that the pair won."""
    target: Literal["soft", "chosen"] = "soft"
    """Target in each state: "soft" is the pair's probability of every action, "chosen" the action that it took."""
    start: Literal["policy", "reflector"] = "policy"
    """Initial weights of the policy: the pair's policy or its reflector. If both were
    trained from scratch, the reflector reads states best. With adapters, only "policy" is possible."""
    steps: Count = 600
    """Optimiser steps."""
    batch_size: Count = 64
    """States per optimiser step."""
    eval_every: Count = 100
    """Optimiser steps between evaluations. The weights that win most validation tasks are kept."""
    eval_episodes: Count = 30
    """Validation tasks per evaluation, spread evenly over all of them."""


def distill_settings(recipe: Recipe) -> DistillConfig:
    """Return the section [distill] of a recipe."""
    settings: DistillConfig = recipe.sections["distill"]
    return settings


SECTIONS = {"distill": DistillConfig}


# ---- the loop --------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """A state and the target probability of each of its actions."""

    observation: Observation
    probs: tuple[float, ...]


def targets(episodes: Iterable[Episode], config: DistillConfig) -> list[Target]:
    """Return the states of a pair's episodes with the pair's choices as targets.

    Raises:
        UserError: no episode is left to learn from.
    """
    rows: list[Target] = []
    for episode in episodes:
        if config.won_only and not episode.success:
            continue
        for step in episode.steps:
            probs: tuple[float, ...] = ()
            if config.target == "soft" and step.choice is not None:
                probs = step.choice.probs
            if not probs:  # all on the chosen action
                probs = tuple(float(i == step.action) for i in range(len(step.observation.actions)))
            rows.append(Target(step.observation, probs))
    if not rows:
        raise UserError("distill: the pair won none of its episodes; leave out distill.won_only")
    return rows


def distillation_loss(logp_NA: Tensor, target_NA: Tensor) -> Tensor:
    """Return KL(target || policy) in nats, averaged over N states. Actions with target probability 0 add nothing.

    Args:
        logp_NA: log-probabilities of the policy, -inf beyond a state's own actions.
        target_NA: probabilities that sum to 1 in each row, 0 beyond a state's own actions.
    """
    import torch

    terms_NA = torch.xlogy(target_NA, target_NA) - target_NA * logp_NA.masked_fill(target_NA == 0, 0.0)
    return terms_NA.sum(-1).mean()


def train_distilled(
    policy: Policy,
    rows: Sequence[Target],
    config: DistillConfig,
    sft: SFTConfig,
    seed: int,
    log: Log,
    evaluate: Callable[[], dict[str, float]],
    state_folder: Path | None = None,
) -> None:
    """Train the policy in place. It ends with the weights that won most validation tasks.

    Args:
        rows: states with their target probabilities.
        sft: settings of optimiser, learning rates, their schedule and gradient clipping.
        log: receives {"step", "kl", "grad_norm", "eval_success", "eval_return"} once per evaluation.
        evaluate: returns success and return on validation tasks, without reflections.
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
    """
    import numpy as np
    import torch

    from reflectrl.learn.optim import make_optimizers
    from reflectrl.learn.trainer import SCHEDULES, Trainer
    from reflectrl.models.sharing import chunks

    lm = policy.lm
    trainer = Trainer(lm, make_optimizers(lm, sft), sft.max_grad_norm, state_folder)
    if trainer.resumed is None:
        _evaluate(trainer, policy, evaluate, log)  # the initial weights may be the best
    while not trainer.has_ended(config.steps):
        trainer.set_rate(SCHEDULES[sft.schedule](trainer.step, config.steps, sft.warmup))
        torch.manual_seed(named_seed(seed, "dropout", trainer.step))  # per step, so that a resumed training is the same
        rng, total = np.random.default_rng(named_seed(seed, "distill", trainer.step)), 0.0
        batch = [rows[i] for i in rng.choice(len(rows), min(config.batch_size, len(rows)), replace=False)]
        with lm.training():
            for part in chunks([1] * len(batch), _per_pass(policy, batch)):
                loss = _loss(policy, batch[part], rng) * len(batch[part]) / len(batch)
                loss.backward()
                total += float(loss.detach())
        trainer.update({"kl": total})
        trainer.step += 1
        if trainer.is_due(config.eval_every, config.steps):
            _evaluate(trainer, policy, evaluate, log)
    trainer.finish()
    policy.clear_cache()


def _evaluate(trainer: Trainer, policy: Policy, evaluate: Callable[[], dict[str, float]], log: Log) -> None:
    """Evaluate and log the policy, keep its weights if they are the best so far, and save the state."""
    policy.clear_cache()
    scores = evaluate()
    means = trainer.means() if trainer.step else {}
    trainer.checkpoint(means | scores, [scores["eval_success"], scores["eval_return"]], log)


def _loss(policy: Policy, rows: Sequence[Target], rng: np.random.Generator) -> Tensor:
    """Return the distillation loss of some states. Their actions are permuted if the policy shuffles labels."""
    import torch

    from reflectrl.learn.losses import restricted_log_softmax

    width = max(len(row.probs) for row in rows)
    prompts = []
    target_NA, legal_NA = torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (observation, probs) in enumerate(rows):
        order = list(range(len(probs)))
        if policy.shuffle_labels:
            order = rng.permutation(len(probs)).tolist()
        prompts.append(policy.prompt(observation, None, order))
        listed = torch.tensor(probs)[order]
        target_NA[i, : len(probs)], legal_NA[i, : len(probs)] = listed / listed.sum(), True
    logits_NA, _ = policy.logits(prompts, [row.observation.actions for row in rows])
    logp_NA = restricted_log_softmax(logits_NA, legal_NA.to(logits_NA.device))
    return distillation_loss(logp_NA, target_NA.to(logits_NA.device))


def _per_pass(policy: Policy, rows: Sequence[Target]) -> int:
    """Return the number of states per forward pass, from the memory that the longest prompt needs."""
    longest = max(len(policy.prompt(row.observation, None)) for row in rows)
    return max(1, policy.lm.pass_bytes // (longest * policy.lm.activation_bytes + policy.lm.logits_bytes))


# ---- the arms --------------------------------------------------------------------------------------------------------


@artifact("distill", "rl", "episodes/{student}-seed{seed}.jsonl",
          settings=(*PLAYED, "distill.episodes", "distill.temperature"))  # fmt: skip
def pair_episodes(build: Build, *, reflector: Source, policy: Source, pair: str, student: str) -> None:
    """Let a pair play the training tasks.

    Args:
        pair: the arm whose players play.
        student: name of the policy that is to learn from the episodes.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.core.episodes import to_lines
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
            build.progress(len(played), len(jobs), f"{success_rate(played):.0%} of them won")
    played.sort(key=lambda episode: order[episode.seed])
    write_text(build.out, to_lines(played))


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
            build.progress(metrics["step"], config.steps, f"validation {metrics['eval_success']:.0%}")

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
