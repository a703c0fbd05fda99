"""Courses: what a player sees on given walks, as digests that can be compared between processes.

A walk is a task, a seed, and either actions or the seed of random ones. This module imports no torch, because each
comparison starts processes that import it.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Task
from reflectrl.tools.certify.budget import now

LONGEST = 80
"""Largest number of steps of a walk."""
LEAST = 28
"""Number of walks that are taken even if they are slow."""
BESIDE = 4
"""Number of environments that are played side by side."""
LATER = 100 * 86400 + 7 * 3600 + 13 * 60 + 5
"""Seconds by which the clock of the second process is ahead."""


@dataclass(frozen=True)
class Walk:
    """Walk through a task.

    Attributes:
        split, number: split of the task, and its place in the list of the split's tasks.
        seed: seed of the environment, and of random actions.
        actions: texts of the actions to take first; random ones follow.
    """

    split: str
    number: int
    seed: int
    actions: tuple[str, ...] = ()


def course(
    env: TextEnv, task: Task, walk: Walk, before_step: Callable[[TextEnv], None] = lambda env: None
) -> Iterator[str]:
    """Take a walk, and yield a digest of everything that a player sees, step by step.

    Args:
        before_step: callback before each step.
    """
    rng = np.random.default_rng(walk.seed)
    text, info = env.reset(seed=walk.seed, options={"task": task})
    yield digest(text, info["actions"])
    for step in range(LONGEST):
        if env.done:
            return
        legal = info["actions"]
        action = int(rng.integers(len(legal)))
        if step < len(walk.actions):
            if walk.actions[step] not in legal:
                yield digest("not legal", walk.actions[step])
                return
            action = legal.index(walk.actions[step])
        before_step(env)
        text, reward, terminated, truncated, info = env.step(action)
        yield digest(text, info["actions"], round(reward, 9), terminated, truncated, info["success"], info["events"])


def digest(*seen: Any) -> str:
    """Return a short digest of JSON values."""
    return hashlib.blake2b(json.dumps(seen).encode(), digest_size=6).hexdigest()


# ---- orders in which walks are taken ---------------------------------------------------------------------------------


def each_fresh(make_env: Callable[[], TextEnv], walks: Sequence[Walk], seconds: float = math.inf) -> list[list[str]]:
    """Take every walk in a fresh environment, until the time is over. The first `LEAST` get ten times as long."""
    courses: list[list[str]] = []
    make_env().close()  # imports what it needs, which says nothing about the time of a walk
    began = now()
    for walk in walks:
        if courses and now() - began > seconds * (10 if len(courses) < LEAST else 1):
            break
        env = make_env()
        courses.append(list(course(env, env.tasks(walk.split)[walk.number], walk)))
        env.close()
    return courses


def backwards(make_env: Callable[[], TextEnv], walks: Sequence[Walk]) -> list[list[str]]:
    """Take all walks in a single environment, the last one first."""
    env, courses = make_env(), []
    for walk in reversed(walks):
        courses.append(list(course(env, env.tasks(walk.split)[walk.number], walk)))
    env.close()
    return courses[::-1]


def beside_each_other(make_env: Callable[[], TextEnv], walks: Sequence[Walk]) -> list[list[str]]:
    """Take several walks at the same time, each in an environment of its own, step by step in turn."""
    courses: list[list[str]] = []
    for start in range(0, len(walks), BESIDE):
        envs = [make_env() for _ in walks[start : start + BESIDE]]
        running = []
        for env, walk in zip(envs, walks[start : start + BESIDE], strict=True):
            courses.append([])
            running.append((course(env, env.tasks(walk.split)[walk.number], walk), courses[-1]))
        while running:
            running = [pair for pair in running if _go_on(*pair)]
        for env in envs:
            env.close()
    return courses


def _go_on(steps: Iterator[str], seen: list[str]) -> bool:
    """Take a step of a course. Return False at its end."""
    step = next(steps, None)
    if step is not None:
        seen.append(step)
    return step is not None


ORDERS = {"each fresh": each_fresh, "backwards": backwards, "beside each other": beside_each_other}


# ---- as a program ----------------------------------------------------------------------------------------------------


def set_clock_ahead() -> None:
    """Put the clock of this process ahead, for code that reads it from `time` or `datetime`."""
    clock, clock_ns = time.time, time.time_ns

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Self:
            return super().now(tz) + datetime.timedelta(seconds=LATER)

        @classmethod
        def utcnow(cls) -> Self:
            return super().now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=LATER)

        @classmethod
        def today(cls) -> Self:
            return cls.now()

    time.time = lambda: clock() + LATER
    time.time_ns = lambda: clock_ns() + LATER * 10**9
    datetime.datetime = Ahead  # type: ignore[misc]


def main() -> None:
    """Take the walks that standard input describes, and print their courses as the last line."""
    request = json.load(sys.stdin)
    if request["clock_ahead"]:
        set_clock_ahead()
    walks = [Walk(**(walk | {"actions": tuple(walk["actions"])})) for walk in request["walks"]]
    make_env = functools.partial(make, request["section"])
    if request["seconds"]:
        courses = each_fresh(make_env, walks, request["seconds"])
    else:
        courses = ORDERS[request["order"]](make_env, walks)
    print("\n" + json.dumps(courses))


def question(
    section: dict[str, Any], walks: Sequence[Walk], order: str, clock_ahead: bool = False, seconds: float = 0.0
) -> str:
    """Return the standard input for `main`.

    Args:
        section: `env` section of JSON values.
        order: order of play, a key of `ORDERS`.
        clock_ahead: put the clock ahead.
        seconds: time after which no further walk begins, each in a fresh environment; 0 takes all of them.
    """
    request = {"section": section, "walks": [asdict(walk) for walk in walks], "order": order}
    return json.dumps(request | {"clock_ahead": clock_ahead, "seconds": seconds})
