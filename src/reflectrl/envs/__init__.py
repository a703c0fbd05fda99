"""Environments: text observations, listed legal actions, and `make`, which builds one from a recipe's `env` section."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any, Literal

from reflectrl.config import Word, convert
from reflectrl.envs.base import TextEnv
from reflectrl.plugins import one_line, resolve, suggestion
from reflectrl.types import UserError

CHECKED = (bool, int, float, str)
"""Parameter types that are checked, beside `Literal`; a parameter of any other type takes what it is given."""


def make(section: Mapping[str, Any]) -> TextEnv:
    """The environment that the `env` section of a recipe describes.

    Args:
        section: `name` (a short name, "package.module:Class" or an entry point) and the keyword arguments of the class.

    Raises:
        UserError: no such environment; an argument that its class does not take, of the wrong type, or missing; or the
            class raised.
    """
    arguments = dict(section)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise UserError('the env section names no environment; write name = "taxi", or "package.module:Class"')
    made = resolve("envs", name)
    arguments = _checked(made, name, arguments)
    try:
        env = made(**arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        raise UserError(f"environment {name!r} cannot be made: {one_line(error)}") from error
    if not isinstance(env, TextEnv):
        raise UserError(f"environment {name!r} is no reflectrl.envs.base.TextEnv but {type(env).__name__}")
    return env


def _checked(made: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the class's signature asks for them."""
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"environment {name!r} is no class: {one_line(error)}") from error
    kinds = {parameter.kind for parameter in parameters.values()}
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = {key: parameter for key, parameter in parameters.items() if parameter.kind in named}
    for key in arguments:
        if key not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UserError(f"environment {name!r} takes no {key!r}{suggestion(key, known)}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UserError(f"environment {name!r} needs {key!r}; set env.{key}")
    hints = _hints(made)
    where = f"environment {name!r}"
    return {key: _typed(hints.get(key), value, where, key) for key, value in arguments.items()}


def _hints(made: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(made.__init__ if inspect.isclass(made) else made)
    except Exception:  # annotations of a plug-in that do not evaluate are not checked
        return {}


def _typed(hint: Any, value: Any, where: str, key: str) -> Any:
    if typing.get_origin(hint) is tuple and isinstance(value, str):
        value = Word(value)  # "heat,cool" on the command line, which has passed through a section of plain values
    if hint in CHECKED or typing.get_origin(hint) in (Literal, tuple):
        return convert(hint, value, where, key)
    return convert(Mapping[str, Any], {key: value}, where, key)[key] if isinstance(value, Word) else value
