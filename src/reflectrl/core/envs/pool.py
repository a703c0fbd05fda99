"""Environments for rollouts: in the player's own process or, if they are slow, in worker processes.

At each step, every worker gets one list of calls, and the answers are collected in order, so the workers run in
parallel. An environment's behaviour depends only on its task and seed, so it does not matter where it runs.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reflectrl.core.envs import make, make_unchanged
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.workers import PATIENCE, MakeEnv, RemoteEnv, Worker
from reflectrl.core.plugins import one_line, resolve_engine
from reflectrl.core.source_code import environment_digest
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe

Answer = TypeVar("Answer")


class EnvPool:
    """Pool of environments, which are lent to one rollout after another and closed at the end.

    Use it as a context manager. A pool can be passed wherever a function that makes environments is expected. If it is
    called like such a function, it makes an environment in this process, which the caller must close.

    Args:
        make_env: function that makes an environment. With workers, it must be picklable: a class, a function of a
            module, or `functools.partial` of either.
        workers: number of processes that host the environments; 0 keeps them in this process. Workers are started when
            they are first needed. They ignore Ctrl-C and leave it to the parent.
        engine: place where workers run. "local" is this machine. Packages can add others through the entry points
            "reflectrl.engines": a class whose `env_worker(make_env)` is used like `workers.Worker`.

    Raises:
        UserError: with workers, if `make_env` cannot be pickled.
    """

    def __init__(self, make_env: MakeEnv, workers: int = 0, engine: str = "local") -> None:
        if workers:
            _require_picklable(make_env)
        self._start = Worker if engine == "local" else resolve_engine(engine).env_worker
        self.make_env, self.workers = make_env, workers
        self._idle: list[TextEnv] = []
        self._made = 0
        self._local = ExitStack()
        self._workers: list[Worker] = []
        # Also ends the workers at exit, if the pool was never closed.
        self._end_workers = Finalize(self, _end, (self._workers,), exitpriority=10)

    def __call__(self) -> TextEnv:
        """Make an environment in this process, which the caller must close."""
        return self.make_env()

    @contextmanager
    def lend(self) -> Iterator[TextEnv]:
        """Lend a free environment within the block. If it runs in a worker, this is a `RemoteEnv`.

        Raises:
            RuntimeError: the pool is closed.
        """
        if not self._end_workers.still_active():
            raise RuntimeError("the pool of environments is closed")
        env = self._idle.pop() if self._idle else self._make()
        try:
            yield env
        finally:
            self._idle.append(env)

    def _make(self) -> TextEnv:
        self._made += 1
        if not self.workers:
            return self._local.enter_context(closing(self.make_env()))
        if len(self._workers) < self.workers:
            self._workers.append(self._start(self.make_env))
        worker = self._workers[(self._made - 1) % self.workers]
        return cast("TextEnv", RemoteEnv(worker, self._made))

    def each(self, function: Callable[..., Answer], envs: Sequence[Any], *columns: Iterable[Any]) -> Iterator[Answer]:
        """Yield the results of `map(function, envs, *columns)` for lent environments, in parallel over the workers.

        `function` must be a module's function. If it raises, its exception is raised here in its turn, after all
        earlier answers.

        Raises:
            UserError: a worker died. The message names the environment and the task that it was playing.
        """
        if not self.workers:
            yield from map(function, envs, *columns)
            return
        awaited = [env._ask(function, *arguments) for env, *arguments in zip(envs, *columns, strict=True)]
        for worker in self._workers:
            worker.send()
        for env, answer in zip(envs, awaited, strict=True):
            yield env._worker.wait(answer)

    def close(self) -> None:
        """Close every environment and end the workers."""
        self._end_workers()
        self._local.close()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pool_of(recipe: Recipe) -> EnvPool:
    """Return a pool of a recipe's environments. Worker processes refuse a source that was edited in the meantime."""
    make_env: MakeEnv = partial(make, recipe.env)
    if recipe.env_workers:
        make_env = partial(make_unchanged, recipe.env, environment_digest(recipe.env))
    return EnvPool(make_env, recipe.env_workers, recipe.engine)


def _require_picklable(make_env: MakeEnv) -> None:
    try:
        pickle.dumps(make_env)
    except Exception as error:
        raise UserError(
            "worker processes need a picklable function to make environments (a class, a function of a module,"
            f" or functools.partial of either): {one_line(error)}"
        ) from error


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.dismiss()
    end = time.monotonic() + PATIENCE
    for worker in workers:
        worker.bury(max(0.0, end - time.monotonic()))
