"""Evaluation of a policy on validation tasks, which decides which checkpoint is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeVar

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players.base import Player
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task, named_seed

if TYPE_CHECKING:  # imports torch
    from reflectrl.models.players import Policy

T = TypeVar("T")


def evaluate_policy(
    policy: Policy,
    reflector: Player | None,
    make_env: Callable[[], TextEnv],
    tasks: Sequence[Task],
    sampling: Literal["greedy", "sampled"],
    seed: int,
) -> dict[str, float]:
    """Return the policy's current success rate and mean return, over one episode per task."""
    temperature = 1.0 if sampling == "sampled" else 0.0
    player = policy.with_sampling(replace(policy.sampling, temperature=temperature))
    jobs = [Job(task, named_seed(seed, "validation", task.id)) for task in tasks]
    played = list(rollout(jobs, make_env, player, reflector))
    return {"eval_success": success_rate(played), "eval_return": mean_return(played)}


def evenly(tasks: Sequence[T], count: int) -> list[T]:
    """Return `count` tasks, spread evenly over the list, or all of them if there are fewer."""
    if count >= len(tasks):
        return list(tasks)
    return [tasks[i * len(tasks) // count] for i in range(count)]


def success_rate(episodes: Sequence[Episode]) -> float:
    """Return the share of episodes that won their stage."""
    return sum(episode.success for episode in episodes) / len(episodes)


def mean_return(episodes: Sequence[Episode]) -> float:
    """Return the mean undiscounted return, without extra rewards of the learner."""
    return sum(episode.total_reward for episode in episodes) / len(episodes)
