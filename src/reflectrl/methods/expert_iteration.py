"""Expert iteration: in each round, play, keep the episodes that won, and imitate them.

Anthony et al. 2017, "Thinking Fast and Slow with Deep Learning and Tree Search", without the search: the policy's own
lucky episodes are the expert (filtered imitation, as in Zelikman et al. 2022, STaR). Text tasks use the same loop with
the best of several completions of each prompt.
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
    from reflectrl.methods.shared.offline.completions import Dataset
    from reflectrl.models.lm import LanguageModel
    from reflectrl.models.players import Policy

Collected = tuple["Dataset | None", dict[str, float]]
"""Data to imitate in a round (None for nothing), and metrics of the round."""
Collect = Callable[[int], Collected]
"""Function that takes a round's number and collects the data to imitate."""


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_expert_iteration(
    lm: LanguageModel,
    collect: Collect,
    config: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Train a model in place. `config.steps` are divided among `config.rounds` rounds.

    Args:
        collect: plays episodes, or writes completions, with the current model (see `Collect`).
        log: receives one flat dictionary per evaluation, which includes the metrics of its round.
        state_folder: folder of the weights between rounds. A killed training repeats the round that it was in.
    """
    import torch

    from reflectrl.learn.trainer import Trainer
    from reflectrl.methods.shared.offline.reference_cache import score_reference

    trainer = Trainer(lm, (), folder=state_folder, keep_best=False)  # its steps are rounds
    share = -(-config.steps // config.rounds)
    while not trainer.has_ended(config.rounds):
        data, collected = collect(trainer.step)
        if data is not None:  # otherwise there is nothing to imitate, and the next round tries again
            cache = score_reference(data, torch.zeros(len(data)))
            imitation = replace(config, algorithm="nll", steps=share)
            note = log_of_round(log, trainer.step * share, config.rounds * share, collected)
            train_offline(data, cache, imitation, named_seed(seed, "learn", trainer.step), note, evaluate=evaluate)
        trainer.step += 1
        trainer.save(logged=trainer.step * share, round=trainer.step)


def own_successes(
    policy: Policy,
    make_env: Callable[[], TextEnv],
    tasks: Sequence[Task],
    config: OfflineConfig,
    seed: int,
    round_number: int,
) -> Collected:
    """Play each task `config.round_episodes` times. Return the episodes that won, and their share."""
    from reflectrl.core.episodes import successes
    from reflectrl.methods.shared.offline.completions import step_dataset

    seed = named_seed(seed, "round", round_number)
    played = play_tasks(policy, make_env, tasks, config.round_episodes, seed)
    won = successes(played)
    return step_dataset(policy, won, config) if won else None, {"played_success": len(won) / len(played)}


def log_of_round(log: Log, first_step: int, steps: int, collected: dict[str, float]) -> Log:
    """Return a callback that logs a round's metrics as steps of the whole training.

    Args:
        first_step: number of steps before the round.
        steps: number of steps of the whole training.
        collected: metrics of the data that the round imitates.
    """

    def note(metrics: dict[str, Any]) -> None:
        # A later round begins with the evaluation that ended the round before.
        if metrics["step"] or not first_step:
            log({**metrics, "step": first_step + metrics["step"], "steps": steps, **collected})

    return note


# ---- the arm ---------------------------------------------------------------------------------------------------------


@artifact("offline", "rl", CHECKPOINT, settings=SETTINGS, shared=True)
def expert_iteration(build: Build, *, log: Path, start: Source) -> None:
    """Train a policy that imitates its own successes, round after round.

    Args:
        log: the log. Only the initial model has learned from it.
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
        learning_seed = named_seed(seed, name)
        collect = partial(own_successes, policy, envs, tasks, config, learning_seed)
        train_expert_iteration(policy.lm, collect, config, learning_seed, note, build.learner, evaluate)
    write_folder(build.out, policy.lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


def from_successes(plan: Plan) -> Artifact:
    """Plan a policy that imitates its own successes."""
    return expert_iteration(plan, "offline-expert-iteration", log=planned_log(plan), start=reference(plan))


ARMS = {"offline-expert-iteration": Arm("imitates its own successes, round after round", from_successes)}
