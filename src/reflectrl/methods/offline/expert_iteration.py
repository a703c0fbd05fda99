"""Expert iteration: in each round, play, keep the episodes that won, and imitate them.

Anthony et al. 2017, "Thinking Fast and Slow with Deep Learning and Tree Search", without the search: the policy's own
lucky episodes are the expert (filtered imitation, as in Zelikman et al. 2022, STaR).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import successes
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task, named_seed
from reflectrl.learn.trainer import Log, Trainer
from reflectrl.methods.offline.completions import step_dataset
from reflectrl.methods.offline.config import OfflineConfig
from reflectrl.methods.offline.learn import Evaluate, train_offline
from reflectrl.methods.offline.reference_cache import score_reference
from reflectrl.models.players import Policy


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
    trainer = Trainer(policy.lm, (), folder=state_folder, keep_best=False)  # its steps are rounds
    share = -(-config.steps // config.rounds)
    while not trainer.has_ended(config.rounds):
        played = play(policy, make_env, tasks, config.round_episodes, named_seed(seed, "round", trainer.step))
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


def play(
    policy: Policy, make_env: Callable[[], TextEnv], tasks: Sequence[Task], times: int, seed: int
) -> list[Episode]:
    """Play each task `times` times; return the episodes in the order of the tasks."""
    jobs = [Job(task, named_seed(seed, task.id, i)) for task in tasks for i in range(times)]
    order = {job.seed: number for number, job in enumerate(jobs)}
    policy.clear_cache()
    return sorted(rollout(jobs, make_env, policy), key=lambda episode: order[episode.seed])
