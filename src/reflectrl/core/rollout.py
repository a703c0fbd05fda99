"""Play many episodes side by side: environments × players → episodes.

The environments advance in lock-step. At each step the reflector writes for every live episode, then the player chooses
an action for each, then all environments step (in parallel if they live in worker processes). An environment whose
episode has ended begins the next job at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from contextlib import closing as closed_in_the_end
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from reflectrl.core import distributed
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.contract import raised
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.players.base import LiveEpisode, Player, carries
from reflectrl.core.types import Choice, CutOff, Episode, Observation, Step, Task, UserError, named_seed


@dataclass(frozen=True)
class Start:
    """Point inside an earlier episode, from which a new episode begins.

    Attributes:
        seed: seed of the earlier episode.
        actions: its actions up to that point.
        carried: the reflection that its reflector carried to each of these actions' observations, and to the point
            itself. Empty if it carried none.
    """

    seed: int
    actions: tuple[str, ...]
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """Episode to be played: the task, and the seed of all its randomness.

    With a `start`, the actions up to that point are repeated before the player acts for the first time. The environment
    then draws the same random numbers as before, and only the player's random numbers come from the job's seed. With a
    `horizon`, the episode is cut off after that many further steps, unless the environment ends it earlier.
    """

    task: Task
    seed: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    start: Start | None = None
    horizon: int = 0


def rollout(
    jobs: Iterable[Job],
    make_env: Callable[[], TextEnv],
    player: Player,
    reflector: Player | None = None,
    batch: int = 64,
    reflect_probability: float = 1.0,
    reflect_on_cut_off: bool = False,
) -> Iterator[Episode]:
    """Play every job and yield its episode when it ends (not necessarily in the order of the jobs).

    An episode ends, lost, where a model's server has refused its question (`Turn.ended`).

    An episode depends only on its job and on the players' weights: not on `batch`, not on where the environments live,
    and not on the other jobs (except for rounding in matrix products, which depends on their shape). If several
    processes make an artifact together, each plays some of the jobs, and all of them yield all episodes.

    If the reflector carries its reflections, each observation holds the latest one, and so does the episode.

    Args:
        make_env: function that makes an environment, called for each environment needed. All are closed at the end. An
            `EnvPool` instead lends its environments, which may run in worker processes, and keeps them.
        batch: largest number of episodes that are played at the same time.
        reflector: player that writes before the other player chooses, or None.
        reflect_probability: probability that the reflector writes at a step.
        reflect_on_cut_off: let the reflector also write about the observation at which an episode is cut off, for a
            critic that estimates the rest.

    Raises:
        UserError: an environment raised an exception, or a start cannot be reached again. Names environment and task.
    """
    team = distributed.current()
    if team.size > 1:
        yield from team.play(
            jobs,
            lambda stripe: rollout(stripe, make_env, player, reflector, batch, reflect_probability, reflect_on_cut_off),
        )
        return
    with ExitStack() as closing:
        for_each: Callable[..., Iterator[Any]] = map
        if isinstance(make_env, EnvPool) and make_env.workers:
            for_each = make_env.each
        remaining_jobs, carrying = iter(jobs), carries(reflector)
        free_envs: list[TextEnv] = []
        playing: list[tuple[LiveEpisode, Job]] = []
        while True:
            # Begin as many jobs as the batch has room for. An environment never draws from the players' random numbers:
            # otherwise, a change in how players sample would also change the task.
            new_jobs = list(islice(remaining_jobs, batch - len(playing)))
            while len(free_envs) < len(new_jobs):
                free_envs.append(closing.enter_context(lent(make_env)))
            envs = [free_envs.pop() for _ in new_jobs]
            starts = [job.start or Start(job.seed, ()) for job in new_jobs]
            beginnings = for_each(begin, envs, [job.task for job in new_jobs], starts)
            for env, job, (steps, now) in zip(envs, new_jobs, beginnings, strict=True):
                rng = np.random.default_rng(named_seed(job.seed, "players"))
                playing.append((LiveEpisode(env, job.task, job.seed, rng, now.observation, steps=steps), job))
            if not playing:
                return

            # The players speak and choose, each for all episodes at once, because a model is fastest in batches.
            episodes = [live for live, _ in playing]
            if reflector is not None:
                reflecting = episodes
                if reflect_probability < 1:
                    # The number is drawn from the episode's own generator, so it does not depend on the other episodes.
                    reflecting = [live for live in episodes if live.rng.random() < reflect_probability]
                if reflecting:
                    for live, turn in zip(reflecting, reflector.turns(reflecting), strict=True):
                        live.turns.append(turn)
            actions: list[int] = []
            for live, turn in zip(episodes, player.turns(episodes), strict=True):
                assert isinstance(turn, Choice), "the acting player took a turn without a choice"
                live.turns.append(turn)
                actions.append(turn.choice)

            # The environments step.
            still_playing, cut_off = [], list[tuple[LiveEpisode, Episode]]()
            time_steps = for_each(advance, [live.env for live in episodes], [live.task for live in episodes], actions)
            for (live, job), action, now in zip(playing, actions, time_steps, strict=True):
                live.steps.append(Step(live.observation, tuple(live.turns), action, now.reward, now.events))
                seen = now.observation
                if carrying:
                    seen = seen.after(live.observation, live.reflection)
                live.turns, live.observation = [], seen
                played = len(live.steps)
                if job.start is not None:
                    played -= len(job.start.actions)  # a horizon counts the player's own steps only
                if live.steps[-1].gave_up:  # the last action was drawn at random, so it wins nothing
                    now = now._replace(truncated=True, success=False)
                live.truncated = now.truncated or (not now.done and played == job.horizon)
                if now.done or live.truncated:
                    episode = Episode(
                        job.task, tuple(live.steps), now.success, live.truncated, job.seed, dict(job.provenance)
                    )
                    if live.truncated:
                        episode = replace(episode, cut_off=CutOff(live.observation))
                    if live.truncated and reflector is not None and reflect_on_cut_off:
                        cut_off.append((live, episode))
                    else:
                        # Handed over at once: the next environment may raise, and a finished episode must not be lost.
                        yield episode
                        free_envs.append(live.env)
                else:
                    still_playing.append((live, job))
            playing = still_playing

            # A single call for all episodes that were cut off at this step, because a model is fastest in batches.
            if reflector is not None and cut_off:
                turns = reflector.turns([live for live, _ in cut_off])
                for (live, episode), turn in zip(cut_off, turns, strict=True):
                    yield replace(episode, cut_off=CutOff(live.observation, turn.text))
                    free_envs.append(live.env)


def lent(make_env: Callable[[], TextEnv]) -> AbstractContextManager[TextEnv]:
    """Make an environment that is closed on exit, or borrow one from a pool, which keeps it for the next call."""
    if isinstance(make_env, EnvPool):
        return make_env.lend()
    return closed_in_the_end(make_env())


class TimeStep(NamedTuple):
    """Result of an environment's reset or step."""

    observation: Observation
    reward: float
    done: bool
    truncated: bool
    success: bool
    events: tuple[str, ...]


def begin(env: TextEnv, task: Task, start: Start) -> tuple[list[Step], TimeStep]:
    """Begin a task and repeat the actions of a start, in this process or in a worker.

    Returns:
        The steps up to the start, in which no player took a turn, and the environment's latest result. Their
        observations hold the reflections that the start carries.

    Raises:
        UserError: the environment raised an exception, or it behaved differently than before, so that an action is not
            legal or the episode is already over.
    """
    now, steps = advance(env, task, None, named_seed(start.seed, "env") % 2**32), list[Step]()
    for step_index, action in enumerate(start.actions):
        seen = now.observation
        if start.carried:
            seen = replace(seen, carried=start.carried[step_index])
        if now.done or action not in seen.actions:
            reason = "the episode was over" if now.done else "it was not legal"
            where = f"action {len(steps) + 1} of an earlier episode, {action!r:.60}"
            raise UserError(f"environment {type(env).__name__} cannot replay task {task.id!r}: {where}: {reason}")
        index = seen.actions.index(action)
        now = advance(env, task, index)
        steps.append(Step(seen, (), index, now.reward, now.events))
    if start.carried:
        now = now._replace(observation=replace(now.observation, carried=start.carried[-1]))
    return steps, now


def advance(env: TextEnv, task: Task, action: int | None, seed: int | None = None) -> TimeStep:
    """Carry out a legal action, given by its index, or begin the task if the action is None.

    Runs in this process or in a worker.

    Raises:
        UserError: the environment raised any exception, including `sys.exit` and other BaseExceptions. Names
            environment and task. Only Ctrl-C passes through.
    """
    try:
        if action is None:
            reward, terminated, truncated = 0.0, False, False
            _, info = env.reset(seed=seed, options={"task": task})
        else:
            _, reward, terminated, truncated, info = env.step(action)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise raised(type(env).__name__, task, error) from error
    done, events = terminated or truncated, tuple(info["events"])
    return TimeStep(info["observation"], reward, done, truncated, info["success"], events)
