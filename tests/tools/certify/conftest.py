"""Random play for the tests of certificates."""

from __future__ import annotations

from collections.abc import Callable

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Episode
from reflectrl.learn.reward_check import random_play


def random_episodes(make_env: Callable[[], TextEnv]) -> list[Episode]:
    """Play the first training tasks at random."""
    tasks = make_env().tasks("train")[:40]
    return [episode for batch in random_play(tasks, make_env, 0, 16, 300) for episode in batch]
