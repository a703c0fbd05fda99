"""Many environments × players → episodes.

The environments advance in lock-step: at each tick the reflector speaks for every live episode, then the player chooses
for every one, then every environment steps, side by side where they live in worker processes. An environment whose
episode has ended begins the next job at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from reflectrl.envs.base import TextEnv
from reflectrl.envs.pool import EnvPool, Moment, advance, begin
from reflectrl.players.base import LiveEpisode, Player
from reflectrl.types import Episode, Step, Task, Turn, named_seed


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

    An episode depends on its job and the players' weights only, not on `batch`, on the other jobs (but for the rounding
    of matrix products, which differs with their shape), or on where the environments games.

    Args:
        make_env: called once for each environment that is needed; they are closed in the end. An `EnvPool` lends those
            that it has, in worker processes if it has any, and keeps them.
        batch: most episodes that are played at the same time.
        reflector: speaks before the player, or None.
        reflect_probability: chance that the reflector speaks at a step.

    Raises:
        UserError: an environment raised; names the environment, the task and the exception.
    """
    with ExitStack() as closing:
        pool = make_env if isinstance(make_env, EnvPool) else closing.enter_context(EnvPool(make_env))
        waiting = iter(jobs)
        free: list[TextEnv] = []
        games: list[tuple[LiveEpisode, Job]] = []
        while True:
            fresh = list(islice(waiting, batch - len(games)))
            envs = [free.pop() if free else closing.enter_context(pool.lend()) for _ in fresh]
            games += zip(_begin(pool, envs, fresh), fresh, strict=True)
            if not games:
                return
            playing = [live for live, _ in games]
            if reflector is not None:
                _reflect(playing, reflector, reflect_probability)
            turns = player.turns(playing)
            moments = pool.each(advance, [live.env for live in playing], map(_choice, turns))
            still = []
            for (live, job), turn, moment in zip(games, turns, moments, strict=True):
                _step(live, turn, moment)
                if moment.done:  # handed over at once: the next environment may raise
                    yield Episode(
                        job.task, tuple(live.steps), moment.success, live.truncated, job.seed, dict(job.provenance)
                    )
                    free.append(live.env)
                else:
                    still.append((live, job))
            games = still


def _begin(pool: EnvPool, envs: Sequence[TextEnv], jobs: Sequence[Job]) -> list[LiveEpisode]:
    """Begin episodes. Environment and players draw from separate streams of a job's seed."""
    seeds = [named_seed(job.seed, "env") % 2**32 for job in jobs]
    moments = pool.each(begin, envs, [job.task for job in jobs], seeds)
    rngs = [np.random.default_rng(named_seed(job.seed, "players")) for job in jobs]
    begun = zip(envs, jobs, rngs, moments, strict=True)
    return [LiveEpisode(env, job.task, job.seed, rng, moment.observation) for env, job, rng, moment in begun]


def _reflect(playing: list[LiveEpisode], reflector: Player, probability: float) -> None:
    speaking = playing if probability >= 1 else [live for live in playing if live.rng.random() < probability]
    if speaking:
        for live, turn in zip(speaking, reflector.turns(speaking), strict=True):
            live.turns.append(turn)


def _choice(turn: Turn) -> int:
    assert turn.choice is not None, "the acting player took a turn without a choice"
    return turn.choice


def _step(live: LiveEpisode, turn: Turn, moment: Moment) -> None:
    """Write down a step that was taken."""
    turns = (*live.turns, turn)
    live.steps.append(Step(live.observation, turns, _choice(turn), moment.reward, moment.events))
    live.turns, live.observation, live.truncated = [], moment.observation, moment.truncated
