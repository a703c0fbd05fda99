"""What messages advise, worded in one place: how to install an extra, and how the caller sets something."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_typed: ContextVar[bool] = ContextVar("typed", default=False)
"""Whether the caller types commands; otherwise a Python program calls."""


@contextmanager
def on_the_command_line() -> Iterator[None]:
    """Word advice as options of the command line within the block; elsewhere it is worded for Python."""
    token = _typed.set(True)
    try:
        yield
    finally:
        _typed.reset(token)


def is_typed() -> bool:
    """Whether the caller types commands."""
    return _typed.get()


def install(*extras: str) -> str:
    """How to install extras. The package is on no index, so the advice is about the checkout it was installed from."""
    names = ",".join(extras)
    return f"in the checkout of reflectrl: pip install '.[{names}]' (or make setup EXTRA={names})"


def option(key: str, value: Any = None) -> str:
    """How the caller sets something: `--rl.lr 0.1` on the command line, `rl={"lr": 0.1}` in Python.

    Args:
        key: the name of an option, or the dotted key of a recipe.
        value: what to set it to; None leaves it open, True stands for a switch.
    """
    if is_typed():
        words = ",".join(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        return f"--{key}" if value in (None, True) else f"--{key} {words}"
    *outer, name = key.split(".")
    if outer:
        return f"{outer[0]}={json.dumps({name: '...' if value is None else value})}"
    return f"{name}={'...' if value is None else value if value is True else json.dumps(value)}"
