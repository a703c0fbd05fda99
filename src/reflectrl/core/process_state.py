"""Protection of this process from the code of a stranger's environment.

Environments change their process: the working directory, torch's switches and random numbers, signal handlers, standard
output. In the process of a run, such a change would move the run's files, results or messages. So after each call of an
environment's code, the process is as it was before. A working directory is given back to its environment at the next
call, since it may open files there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

SIGNALS = (signal.SIGINT, signal.SIGTERM)
OUTPUTS = ("stdout", "stderr")

_folders: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Working directories into which environments have changed."""


@contextmanager
def process_unchanged(env: Any = None) -> Iterator[None]:
    """Undo what the block changes in this process.

    Args:
        env: environment whose code is called; None while it is being made.
    """
    folder = _current_folder()
    if env is not None and env in _folders:
        _change_folder(_folders[env])
    handlers = [signal.getsignal(number) for number in SIGNALS]
    outputs = [getattr(sys, name) for name in OUTPUTS]
    switches = _torch_switches()
    try:
        yield
    finally:
        if (present := _current_folder()) != folder:
            if env is not None and present:
                _folders[env] = present
            _change_folder(folder)
        for name, output in zip(OUTPUTS, outputs, strict=True):
            setattr(sys, name, output)
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(SIGNALS, handlers, strict=True):
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)
        _restore_torch(switches)


def made_unchanged(make: Callable[[], Any]) -> Any:
    """Make an environment, and undo what that changes in this process."""
    before = _current_folder()
    with process_unchanged():
        env = make()
        after = _current_folder()
    if after not in ("", before):
        _folders[env] = after
    return env


def _current_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 -- called at every step
    except OSError:  # it was removed
        return ""


def _change_folder(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _torch_switches() -> tuple[Any, ...]:
    """Return torch's global switches and the state of its random numbers; empty if it is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_rng_state"):
        return ()
    return (
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state(),
    )


def _restore_torch(before: tuple[Any, ...]) -> None:
    if not before:
        return
    torch: Any = sys.modules["torch"]
    *switches, rng = before
    *present, rng_now = _torch_switches()
    setters = (
        torch.set_grad_enabled,
        torch.set_num_threads,
        torch.set_default_dtype,
        torch.use_deterministic_algorithms,
    )
    for setter, value, now in zip(setters, switches, present, strict=True):
        if value != now:
            setter(value)
    if not torch.equal(rng, rng_now):
        torch.set_rng_state(rng)
