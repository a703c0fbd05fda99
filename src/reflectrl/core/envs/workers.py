"""Worker processes that host environments, for `reflectrl.core.envs.pool`.

A worker hosts several environments and answers calls in order. Its pipe carries calls and answers, never an
environment. This module and everything that a worker imports work without torch.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.teacher import ABILITIES, Teacher
from reflectrl.core.local_modules import allowed_modules, begin_worker, without_current_folder
from reflectrl.core.plugins import one_line
from reflectrl.core.types import Task, UserError

MakeEnv = Callable[[], TextEnv]

PATIENCE = 3.0
"""Seconds that workers have to close their environments before they are killed."""
LOOK = 1.0
"""Seconds between checks whether a worker is alive, while waiting for its answer. A step may take any time."""


class RemoteTeacher(Teacher):
    """Stand-in for the teacher of an environment in a worker, which asks it there."""

    def __getattribute__(self, name: str) -> Any:
        if name not in ABILITIES.values():
            return super().__getattribute__(name)
        return lambda env: env._now(_ask_teacher, name)


class RemoteEnv:
    """Stand-in for an environment in a worker. All its public attributes and methods can be used here."""

    teacher = RemoteTeacher()

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker, self._number = worker, number
        self._task: Task | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        is_method, value = self._now(_look_up, name)
        return partial(self._now, _call, name) if is_method else value

    def _ask(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        self._task = next((argument for argument in arguments if isinstance(argument, Task)), self._task)
        return self._worker.ask(self, function, arguments, named)

    def _now(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        answer = self._ask(function, *arguments, **named)
        self._worker.send()
        return self._worker.wait(answer)


def _look_up(env: TextEnv, name: str) -> tuple[bool, Any]:
    """Return (True, None) if an attribute is a method, otherwise (False, its value)."""
    value = getattr(env, name)
    return (True, None) if callable(value) else (False, value)


def _call(env: TextEnv, name: str, *arguments: Any, **named: Any) -> Any:
    return getattr(env, name)(*arguments, **named)


def _ask_teacher(env: TextEnv, ability: str) -> Any:
    return getattr(env.teacher, ability)(env)


# ---- a worker, seen by its parent ----------------------------------------------------------------------------------


class Worker:
    """Process that hosts environments. The constructor starts it and does not wait."""

    def __init__(self, make_env: MakeEnv) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of torch's threads
        self._pipe, worker_pipe = context.Pipe()
        # Not a daemon, since an environment may have children.
        self._process = context.Process(target=host, args=(worker_pipe, allowed_modules()), daemon=False)
        with deaf_children(), without_current_folder():
            self._process.start()
        worker_pipe.close()
        self._unsent: list[tuple[Any, ...]] = []
        self._awaited: deque[tuple[RemoteEnv, Future[Any]]] = deque()
        self._post(ForkingPickler.dumps(make_env))

    def ask(self, env: RemoteEnv, function: Callable[..., Any], arguments: Any, named: Any) -> Future[Any]:
        """Add a call to the next `send`. `wait` returns its answer."""
        answer: Future[Any] = Future()
        self._unsent.append(((env._number, function, arguments, named), env, answer))
        return answer

    def send(self) -> None:
        """Send the collected calls.

        Outstanding answers are received first. A worker that cannot deliver its answers reads no calls, so both sides
        would wait for ever.
        """
        while self._awaited:
            self._receive()
        if self._unsent:
            pending, self._unsent = self._unsent, []
            try:
                calls = ForkingPickler.dumps([call for call, _, _ in pending])
            except Exception as error:
                raise UserError(f"a call cannot be sent to a worker process: {one_line(error)}") from error
            self._awaited.extend((env, answer) for _, env, answer in pending)
            self._post(calls)

    def wait(self, answer: Future[Any]) -> Any:
        """Return the answer to a call that was sent, or raise what the call raised."""
        while not answer.done():
            self._receive()
        return answer.result()

    def _post(self, data: Any) -> None:
        # An OSError means that the worker has died. `wait` reports that.
        with suppress(OSError), self._in_one_piece():
            self._pipe.send_bytes(data)

    def _receive(self) -> None:
        """Receive the next answer. If the worker has died, all open calls fail."""
        try:
            with self._in_one_piece():
                while not self._pipe.poll(LOOK):
                    # A child of the worker may hold the pipe open, so that no end of file comes when the worker dies.
                    if not self._process.is_alive() and not self._pipe.poll():
                        raise EOFError
                value, error = self._pipe.recv()
        except (EOFError, OSError):
            return self._mourn()
        except Exception as problem:  # unpickling runs the environment's own code, which may raise anything
            value, error = None, UserError(f"the answer of an environment cannot be read: {one_line(problem)}")
        _, answer = self._awaited.popleft()
        return answer.set_result(value) if error is None else answer.set_exception(error)

    @contextmanager
    def _in_one_piece(self) -> Iterator[None]:
        """Kill the worker if Ctrl-C comes within the block: half a message in the pipe would spoil all later ones."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._process.kill()
            raise

    def _mourn(self) -> None:
        """Make all open calls fail, because the worker died. The first one belongs to the environment in use."""
        self._process.join(PATIENCE)
        if self._process.is_alive():  # an environment's thread may keep it from ending
            self._process.kill()
            self._process.join(PATIENCE)
        code = self._process.exitcode or 0
        cause = f"exit code {code}" if code >= 0 else f"signal {-code}{', out of memory?' if code == -9 else ''}"
        task = self._awaited[0][0]._task
        subject = (
            f"environment {task.env!r}: its worker process ended on task {task.id!r}" if task else "a worker ended"
        )
        for _, answer in self._awaited:
            answer.set_exception(UserError(f"{subject} ({cause})"))
        self._awaited.clear()

    def dismiss(self) -> None:
        """Let the worker close its environments and end."""
        self._pipe.close()

    def bury(self, patience: float) -> None:
        """Wait until the worker has ended, and kill it if it takes too long."""
        self._process.join(patience)
        self._process.kill()
        self._process.join(PATIENCE)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Make processes that are started within the block ignore Ctrl-C from the beginning."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---- a worker, seen from inside ------------------------------------------------------------------------------------


def host(pipe: Connection, modules: Mapping[str, str]) -> None:
    """Run the main loop of a worker: receive `make_env`, then answer lists of calls until the pipe is closed.

    Args:
        modules: modules that the parent may import from a folder, and the folder.
    """
    begin_worker(modules)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    envs: dict[int, TextEnv] = {}
    with ExitStack() as stack, pipe, suppress(EOFError, OSError):  # the parent is done, or dead
        make_env = _received(pipe)
        while True:
            for env_number, function, arguments, named in pipe.recv():
                try:
                    if env_number not in envs:
                        envs[env_number] = stack.enter_context(closing(make_env()))
                    answer = ForkingPickler.dumps((function(envs[env_number], *arguments, **named), None))
                except BaseException as error:  # an answer that cannot be pickled included
                    answer = ForkingPickler.dumps((None, portable(error)))
                pipe.send_bytes(answer)


def _received(pipe: Connection) -> MakeEnv:
    """Receive the function that makes environments. If unpickling fails, return a function that raises the reason."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        raise
    except Exception as error:
        return partial(_refuse, f"environments cannot be made in a worker process: {one_line(error)}")


def _refuse(why: str) -> TextEnv:
    raise UserError(why)


def portable(error: BaseException) -> BaseException:
    """Convert an exception so that it can be sent to another process. For a bug, add its traceback as a note."""
    if isinstance(error, UserError):
        return UserError(str(error))
    if not isinstance(error, Exception | KeyboardInterrupt):  # it would end the other process without a word
        return UserError(f"a worker process raised {one_line(error)}")
    sendable = error if _survives(error) else RuntimeError(one_line(error))
    sendable.add_note(f"in a worker process:\n{traceback.format_exc()}")
    return sendable


def _survives(error: BaseException) -> bool:
    """Return whether an exception can be pickled and unpickled. Only Python's own classes exist in every process."""
    if type(error).__module__ != "builtins":
        return False
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 -- bytes made on the line above
    except Exception:
        return False
    return True


def _end_with_parent() -> None:
    """End this process after the parent has ended, with some time to close environments."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    time.sleep(PATIENCE)
    os._exit(1)
