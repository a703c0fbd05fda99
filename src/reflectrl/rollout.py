"""Many environments × players → episodes.

The environments advance in lock-step: at each tick the reflector speaks for every seat, then the player chooses for
every seat, then every environment steps. A finished seat is given to the next job at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reflectrl.envs.base import TextEnv
from reflectrl.players.base import Player, Seat
from reflectrl.plugins import one_line
from reflectrl.types import Episode, Step, Task, Turn, UserError, named_seed


@dataclass(frozen=True)
class Job:
    """An episode to be played: the task, and the seed of all its randomness."""

    task: Task
    seed: int
    provenance: Mapping[str, Any] = field(default_factory=dict)


def rollout(
    jobs: Iterable[Job],
    make_env: Callable[[], TextEnv],
    player: Player,
    reflector: Player | None = None,
    batch: int = 64,
    reflect_probability: float = 1.0,
) -> Iterator[Episode]:
    """Play every job and yield its episode when it ends (not necessarily in the order of the jobs).

    An episode depends on its job and the players' weights only, not on `batch` or on the other jobs (but for the
    rounding of matrix products, which differs with their shape).

    Args:
        make_env: called once for each seat that is needed; the environments are closed in the end.
        batch: most episodes that are played at the same time.
        reflector: speaks before the player, or None.
        reflect_probability: chance that the reflector speaks at a step.

    Raises:
        UserError: an environment raised; names the environment, the task and the exception.
    """
    with ExitStack() as closing:
        waiting = iter(jobs)
        free: list[TextEnv] = []
        live: list[tuple[Seat, Job]] = []
        while True:
            while len(live) < batch and (job := next(waiting, None)) is not None:
                env = free.pop() if free else closing.enter_context(contextlib.closing(make_env()))
                live.append((_seat(env, job), job))
            if not live:
                return
            seats = [seat for seat, _ in live]
            if reflector is not None:
                _reflect(seats, reflector, reflect_probability)
            for (seat, job), turn in zip(live, player.turns(seats), strict=True):
                _step(seat, turn)
                if seat.env.done:  # handed over at once: the next environment may raise
                    yield _episode(seat, job)
                    free.append(seat.env)
            live = [(seat, job) for seat, job in live if not seat.env.done]


def _seat(env: TextEnv, job: Job) -> Seat:
    """Begin an episode. Environment and players draw from separate streams of the job's seed."""
    try:
        env.reset(seed=named_seed(job.seed, "env") % 2**32, options={"task": job.task})
        rng = np.random.default_rng(named_seed(job.seed, "players"))
        return Seat(env, job.task, job.seed, rng, env.observe())
    except Exception as error:
        raise _blame(env, job.task, error) from error


def _reflect(seats: list[Seat], reflector: Player, probability: float) -> None:
    speaking = seats if probability >= 1 else [seat for seat in seats if seat.rng.random() < probability]
    if speaking:
        for seat, turn in zip(speaking, reflector.turns(speaking), strict=True):
            seat.turns.append(turn)


def _step(seat: Seat, turn: Turn) -> None:
    choice = turn.choice
    assert choice is not None, "the acting player took a turn without a choice"
    seat.turns.append(turn)
    try:
        _, reward, _, seat.truncated, info = seat.env.step(choice)
        if not math.isfinite(reward):
            raise ValueError(f"the reward must be a finite number, not {reward}")
        seat.steps.append(Step(seat.observation, tuple(seat.turns), choice, reward, tuple(info["events"])))
        seat.turns = []
        seat.observation = seat.env.observe()
    except Exception as error:
        raise _blame(seat.env, seat.task, error) from error


def _blame(env: TextEnv, task: Task, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"environment {type(env).__name__} raised on task {task.id!r}: {one_line(error)}")


def _episode(seat: Seat, job: Job) -> Episode:
    return Episode(job.task, tuple(seat.steps), seat.env.success, seat.truncated, job.seed, dict(job.provenance))
