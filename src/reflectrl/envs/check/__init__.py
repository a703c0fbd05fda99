"""`check_text_env`: does an environment keep the promises on which players, teachers and learners rely?

Each rule is tried on real episodes, and gymnasium's own checker runs last. The first broken rule is named.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from reflectrl.envs.base import TextEnv
from reflectrl.envs.check.episodes import check_episode, check_expert
from reflectrl.envs.check.rules import EnvCheckError, require
from reflectrl.envs.check.tasks import check_tasks, warn_of_one_start
from reflectrl.envs.promises import PromiseError
from reflectrl.envs.splits import SPLITS
from reflectrl.plugins import one_line
from reflectrl.types import named_seed

__all__ = ["EnvCheckError", "check_text_env"]

HARMLESS = re.compile(r"not having a spec|different from the unwrapped version")


def check_text_env(env_or_factory: TextEnv | Callable[[], TextEnv], *, episodes: int = 3, seed: int = 0) -> None:
    """Try an environment's promises; return quietly when all are kept.

    Args:
        env_or_factory: an environment, or (stricter) a callable that makes one: the class itself, or a `partial` of it.
            Only with a callable are two independent instances compared; otherwise the second is a pickled copy.
        episodes: walks per stage and split. Every other walk follows the expert, where there is one, half of the time.
        seed: of the walks.

    Raises:
        EnvCheckError: names the first broken rule. What the environment's own code raises is passed on as it is.
    """
    env = env_or_factory if isinstance(env_or_factory, TextEnv) else env_or_factory()
    require(isinstance(env, TextEnv), f"an environment is a TextEnv, not {type(env).__name__}")
    try:
        _try_everything(env, env_or_factory, episodes, seed)
    except PromiseError as error:
        raise EnvCheckError(error.promise) from error


def _try_everything(env: TextEnv, env_or_factory: TextEnv | Callable[[], TextEnv], episodes: int, seed: int) -> None:
    copy = _copier(env)
    fresh = copy if isinstance(env_or_factory, TextEnv) else env_or_factory
    check_tasks(env, fresh())
    warn_of_one_start(env)
    for stage in env.stages:
        for split in SPLITS:
            tasks = env.tasks(split, stage)
            for number in range(episodes if tasks else 0):
                rng = np.random.default_rng(named_seed(seed, stage, split, number))
                task = tasks[int(rng.integers(len(tasks)))]
                check_episode(env, fresh(), task, rng, follow=0.5 * (number % 2))
        check_expert(env, stage, seed)
    check_episode(_copier(env)(), copy(), env.tasks("train")[0], np.random.default_rng(seed), follow=0.0)
    _check_with_gymnasium(env)


def _copier(env: TextEnv) -> Callable[[], TextEnv]:
    """Makes copies through pickle, the way in which environments travel to other processes."""
    try:
        data = pickle.dumps(env)
        pickle.loads(data)  # noqa: S301 -- bytes made on the line above
    except Exception as error:  # pickling runs the author's code, which may raise anything
        raise EnvCheckError(f"an environment can be pickled: {one_line(error)}") from error
    return lambda: pickle.loads(data)  # noqa: S301 -- the same bytes


class _AnyIndex(gym.Wrapper[str, int, str, int]):
    """Wraps indices around: gymnasium's checker keeps an action across a reset, after which fewer may be legal."""

    def step(self, action: int) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        return self.env.step(int(action) % int(self.action_space.n))  # type: ignore[attr-defined]


def _check_with_gymnasium(env: TextEnv) -> None:
    """Gymnasium's `check_env`; its warnings are passed on, except two about being wrapped and unregistered."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(_AnyIndex(env))
        except (AssertionError, gym.error.Error, TypeError) as error:
            raise EnvCheckError(f"gymnasium's check_env: {one_line(error)}") from error
    for warning in caught:
        if not HARMLESS.search(str(warning.message)):
            warnings.warn(warning.message, warning.category, stacklevel=3)
