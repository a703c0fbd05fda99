"""Arguments that a recipe gives to a class, checked against the class's own signature."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any, Literal

from reflectrl.config.values import Word, convert
from reflectrl.plugins import one_line, suggestion
from reflectrl.types import UserError

CHECKED = (bool, int, float, str)
"""Parameter types that are checked, beside `Literal` and tuples; any other type takes what it is given."""


def checked(made: Any, arguments: Mapping[str, Any], what: str, section: str) -> dict[str, Any]:
    """The arguments as the signature of `made` asks for them.

    Args:
        made: a class, or what else can be called.
        what: what it is in words ("environment 'taxi'"), for messages.
        section: where a recipe sets the arguments ("env"), for messages.

    Raises:
        UserError: an argument that it does not take, of the wrong type, or missing.
    """
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is no class: {one_line(error)}") from error
    kinds = {parameter.kind for parameter in parameters.values()}
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = {key: parameter for key, parameter in parameters.items() if parameter.kind in named}
    for key in arguments:
        if key not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UserError(f"{what} takes no {key!r}{suggestion(key, known)}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UserError(f"{what} needs {key!r}; set {section}.{key}")
    hints = _hints(made)
    return {key: _typed(hints.get(key), value, what, key) for key, value in arguments.items()}


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
