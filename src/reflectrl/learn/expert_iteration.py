"""Expert iteration: play, keep the episodes that won, imitate them, and again from there.

Anthony et al. 2017, "Thinking Fast and Slow with Deep Learning and Tree Search", without the search: the policy's own
lucky episodes are the expert (filtered imitation, as in Zelikman et al. 2022, STaR).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from reflectrl.config import OfflineConfig
from reflectrl.envs.base import TextEnv
from reflectrl.episodes import successes
from reflectrl.learn.checkpoint import load_state, prefixed, save_state, without_prefix
from reflectrl.learn.completions import step_dataset
from reflectrl.learn.offline import Judge, Log, train_offline
from reflectrl.learn.offline_cache import appraise
from reflectrl.players.policy import Policy
from reflectrl.rollout import Job, rollout
from reflectrl.types import Episode, Task, named_seed


def train_expert_iteration(
    policy: Policy,
    make_env: Callable[[], TextEnv],
    tasks: Sequence[Task],
    config: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    judge: Judge | None = None,
) -> None:
    """Train the policy in place; `config.steps` are shared by `config.rounds` rounds.

    Args:
        tasks: what is played, `config.round_episodes` times in each round.
        log: receives one flat dictionary per evaluation; "played_success" is the success rate of the round's episodes.
        state_folder: where the weights are kept between rounds; a killed training repeats the round that it was in.
    """
    first = 0
    if state_folder is not None and (saved := load_state(state_folder)) is not None:
        policy.lm.load_weights(without_prefix("weights", saved[0]))
        first = saved[1]["round"]
    share = -(-config.steps // config.rounds)
    for number in range(first, config.rounds):
        played = play(policy, make_env, tasks, config.round_episodes, named_seed(seed, "round", number))
        won = successes(played)
        if won:
            begun, rate = number * share, len(won) / len(played)
            data = step_dataset(policy, won, config)
            appraisal = appraise(data, torch.zeros(len(data)))

            def note(metrics: dict[str, float], begun: int = begun, rate: float = rate) -> None:
                if metrics["step"] or not begun:
                    log({**metrics, "step": begun + metrics["step"], "played_success": rate})

            settings = replace(config, algorithm="nll", steps=share)
            train_offline(data, appraisal, settings, named_seed(seed, "learn", number), note, judge=judge)
        if state_folder is not None:
            meta = {"round": number + 1, "step": (number + 1) * share}
            save_state(state_folder, prefixed("weights", policy.lm.weights()), meta)


def play(
    policy: Policy, make_env: Callable[[], TextEnv], tasks: Sequence[Task], times: int, seed: int
) -> list[Episode]:
    """Episodes of each task, `times` of them, in the order of the tasks."""
    jobs = [Job(task, named_seed(seed, task.id, i)) for task in tasks for i in range(times)]
    order = {job.seed: number for number, job in enumerate(jobs)}
    policy.clear_cache()
    return sorted(rollout(jobs, make_env, policy), key=lambda episode: order[episode.seed])
