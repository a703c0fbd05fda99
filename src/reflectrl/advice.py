"""What messages advise, worded in one place: how to install an extra, and how the caller sets something."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
    """How to install extras; without any, the whole package. It is on no index, so the advice is about its checkout."""
    if not extras:
        return "in the checkout of reflectrl: pip install . (or make setup)"
    names = ",".join(extras)
    return f"in the checkout of reflectrl: pip install '.[{names}]' (or make setup EXTRA={names})"


def option(key: str, value: Any = None) -> str:
    """How the caller sets something: `--rl.lr 0.1` on the command line, `rl={"lr": 0.1}` in Python.

    Args:
        key: the name of an option, or the dotted key of a recipe.
        value: what to set it to, for a section a mapping; None names the key only, True stands for a switch.
    """
    if is_typed():
        return _as_option(key, value)
    section, dot, name = key.partition(".")
    if dot:
        return option(section, {name: value})
    return section if value is None else f"{section}={value if value is True else json.dumps(value, default=str)}"


def _as_option(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(_as_option(f"{key}.{name}", item) for name, item in value.items())
    if value is None or value is True:
        return f"--{key}"
    words = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return f"--{key} {words}"
