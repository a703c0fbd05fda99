"""Workers of environments on a Ray cluster. `core.envs.pool` uses them like local workers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.workers import MakeEnv, RemoteEnv, portable
from reflectrl.core.local_modules import allow_modules, allowed_modules
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.runs.cluster.connection import connected

Asked = list[tuple[RemoteEnv, Future[Any]]]


class RayWorker:
    """An actor that hosts environments anywhere on the cluster. Starting it does not block; `wait` does."""

    def __init__(self, make_env: MakeEnv) -> None:
        self.ray = connected()
        # It reserves no core: an artifact that holds all of them would wait for its environments for ever.
        actor = self.ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Host)
        self._host = actor.remote(make_env, str(Path.cwd()), allowed_modules())
        self._unsent: list[tuple[tuple[Any, ...], RemoteEnv, Future[Any]]] = []
        self._awaited: deque[tuple[Any, Asked]] = deque()

    def ask(self, env: RemoteEnv, function: Any, arguments: Any, named: Any) -> Future[Any]:
        """Queue a call for the next `send`, and return its future answer."""
        answer: Future[Any] = Future()
        self._unsent.append(((env._number, function, arguments, named), env, answer))
        return answer

    def send(self) -> None:
        """Send the queued calls."""
        calls, self._unsent = self._unsent, []
        if not calls:
            return
        try:
            ref = self._host.call.remote([call for call, _, _ in calls])
        except TypeError as error:
            raise UserError(f"a call cannot be sent to a worker: {one_line(error)}") from error
        self._awaited.append((ref, [(env, answer) for _, env, answer in calls]))

    def wait(self, answer: Future[Any]) -> Any:
        """Return the answer to a call that was sent. Raises the error of the call."""
        while not answer.done():
            ref, calls = self._awaited.popleft()
            try:
                outcomes = self.ray.get(ref)
            except self.ray.exceptions.RayError as lost:
                outcomes = [(None, UserError(self._lost(env, lost))) for env, _ in calls]
            for (_, waiting), (value, error) in zip(calls, outcomes, strict=True):
                waiting.set_result(value) if error is None else waiting.set_exception(error)
        return answer.result()

    def _lost(self, env: RemoteEnv, error: Exception) -> str:
        task = env._task
        whose = f"environment {task.env!r}: its Ray worker ended on task {task.id!r}" if task else "a Ray worker ended"
        return f"{whose} ({type(error).__name__})"

    def dismiss(self) -> None:
        """Let the actor close its environments."""
        self._closed = self._host.close.remote()

    def bury(self, patience: float) -> None:
        """Wait until the environments are closed, then end the actor."""
        self.ray.wait([self._closed], timeout=patience)
        self.ray.kill(self._host)


class Host:
    """The actor: its environments by number. Each is made at its first call.

    Args:
        folder: current folder of the process that plays.
        modules: modules that it may import from a folder, and the folder.
    """

    def __init__(self, make_env: MakeEnv, folder: str, modules: Mapping[str, str]) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        allow_modules(modules)
        self._make_env, self._envs, self._stack = make_env, dict[int, TextEnv](), ExitStack()

    def call(self, calls: list[tuple[Any, ...]]) -> list[tuple[Any, BaseException | None]]:
        """Carry out calls (number of the environment, function, arguments). Returns answers and errors in order."""
        return [self._answer(*call) for call in calls]

    def _answer(self, number: int, function: Any, arguments: Any, named: Any) -> tuple[Any, BaseException | None]:
        try:
            if number not in self._envs:
                self._envs[number] = self._stack.enter_context(closing(self._make_env()))
            return function(self._envs[number], *arguments, **named), None
        except BaseException as error:
            return None, portable(error)

    def close(self) -> None:
        """Close the environments."""
        self._stack.close()
