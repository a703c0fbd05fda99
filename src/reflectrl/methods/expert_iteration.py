"""Expert iteration: in each round, play, keep the episodes that won, and imitate them.

Anthony et al. 2017, "Thinking Fast and Slow with Deep Learning and Tree Search", without the search: the policy's own
lucky episodes are the expert (filtered imitation, as in Zelikman et al. 2022, STaR).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core.types import Task, named_seed
from reflectrl.methods.offline import (
    SETTINGS,
    Evaluate,
    evaluate_on_validation,
    load_policy,
    note_progress,
    planned_log,
    play_tasks,
    reference,
    train_offline,
)
from reflectrl.methods.shared.offline.config import OfflineConfig, offline_settings
from reflectrl.runs.arms import Arm
from reflectrl.runs.artifact import CHECKPOINT, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.learn.trainer import Log
    from reflectrl.models.players import Policy


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_expert_iteration(
    policy: Policy,
    make_env: Callable[[], TextEnv],
    tasks: Sequence[Task],
    config: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Train the policy in place. `config.steps` are divided among `config.rounds` rounds.

    Args:
        tasks: training tasks, each played `config.round_episodes` times per round.
        log: receives one flat dictionary per evaluation; "played_success" is the success rate of the round's episodes.
        state_folder: folder of the weights between rounds. A killed training repeats the round that it was in.
    """
    import torch

    from reflectrl.core.episodes import successes
    from reflectrl.learn.trainer import Trainer
    from reflectrl.methods.shared.offline.completions import step_dataset
    from reflectrl.methods.shared.offline.reference_cache import score_reference

    trainer = Trainer(policy.lm, (), folder=state_folder, keep_best=False)  # its steps are rounds
    share = -(-config.steps // config.rounds)
    while not trainer.has_ended(config.rounds):
        played = play_tasks(policy, make_env, tasks, config.round_episodes, named_seed(seed, "round", trainer.step))
        if won := successes(played):  # otherwise there is nothing to imitate, and the next round plays again
            data = step_dataset(policy, won, config)
            cache = score_reference(data, torch.zeros(len(data)))
            imitation = replace(config, algorithm="nll", steps=share)
            note = log_of_round(log, trainer.step * share, len(won) / len(played))
            train_offline(data, cache, imitation, named_seed(seed, "learn", trainer.step), note, evaluate=evaluate)
        trainer.step += 1
        trainer.save(logged=trainer.step * share, round=trainer.step)


def log_of_round(log: Log, first_step: int, played_success: float) -> Log:
    """Return a callback that logs a round's metrics as steps of the whole training."""

    def note(metrics: dict[str, Any]) -> None:
        # A later round begins with the evaluation that ended the round before.
        if metrics["step"] or not first_step:
            log({**metrics, "step": first_step + metrics["step"], "played_success": played_success})

    return note


# ---- the arm ---------------------------------------------------------------------------------------------------------


@artifact("offline", "rl", CHECKPOINT, settings=SETTINGS, shared=True)
def expert_iteration(build: Build, *, log: Path, start: Source) -> None:
    """Train a policy that imitates its own successes, round after round.

    Args:
        log: the log, from which only the initial model has learned.
        start: the initial model.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.runs.metrics import MetricsFile

    recipe, seed, name, config = build.recipe, build.seed, build.name, offline_settings(build.recipe)
    policy, tasks = load_policy(recipe, start, seed), make(recipe.env).tasks("train")
    with (
        pool_of(recipe) as envs,
        MetricsFile(build.metrics, build.learner, {"kind": "offline", "seed": seed, "arm": name}) as file,
    ):
        note = partial(note_progress, file, build, config)
        evaluate = partial(evaluate_on_validation, recipe, policy, "expert-iteration", envs, seed)
        train_expert_iteration(policy, envs, tasks, config, named_seed(seed, name), note, build.learner, evaluate)
    write_folder(build.out, policy.lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


def from_successes(plan: Plan) -> Artifact:
    """Plan a policy that imitates its own successes."""
    return expert_iteration(plan, "offline-expert-iteration", log=planned_log(plan), start=reference(plan))


ARMS = {"offline-expert-iteration": Arm("imitates its own successes, round after round", from_successes)}
