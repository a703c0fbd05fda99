"""Advice in messages, worded in one place: installing an extra, and setting an option."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_typed: ContextVar[bool] = ContextVar("typed", default=False)
"""True if the caller types commands, False if a Python program calls."""


@contextmanager
def on_the_command_line() -> Iterator[None]:
    """Word advice for the command line within the block. Elsewhere it is worded for Python."""
    token = _typed.set(True)
    try:
        yield
    finally:
        _typed.reset(token)


def is_typed() -> bool:
    """Return whether the caller types commands."""
    return _typed.get()


def install(*extras: str) -> str:
    """Advise how to install extras, or the package itself if none are given.

    The package is on no index, so the advice refers to its checkout.
    """
    if not extras:
        return "in the checkout of reflectrl: pip install . (or make setup)"
    names = ",".join(extras)
    return f"in the checkout of reflectrl: pip install '.[{names}]' (or make setup EXTRA={names})"


def option(key: str, value: Any = None) -> str:
    """Write a setting as the caller would: `--rl.lr 0.1` on the command line, `rl={"lr": 0.1}` in Python.

    Args:
        key: name of an option, or dotted key of a recipe.
        value: value of the setting, or a mapping for a section. None names the key only, and True stands for a switch.
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
