"""Environments: text observations, listed legal actions, and `make`, which builds one from a recipe's `env` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reflectrl.core.config import checked
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.open_environments import note_open
from reflectrl.core.plugins import names, one_line, resolve_class
from reflectrl.core.process_state import made_unchanged
from reflectrl.core.source_code import environment_digest
from reflectrl.core.types import UserError


def make(section: Mapping[str, Any]) -> TextEnv:
    """Make the environment that the `env` section of a recipe describes.

    Within `closing_environments`, it is closed at the end of the block if nobody has closed it before.

    Args:
        section: `name` (a short name or "package.module:Class") and the keyword arguments of the class.

    Raises:
        UserError: there is no such environment, it is not a class derived from `TextEnv`, an argument is unknown,
            missing or of the wrong type, or the class raised an exception.
    """
    try:
        env: TextEnv = made_unchanged(lambda: _made(section))
        note_open(env)
        return env
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plug-in may raise anything
        raise UserError(f"environment {section['name']!r} cannot be made: {one_line(error)}") from error


def _made(section: Mapping[str, Any]) -> TextEnv:
    env_class, arguments = class_and_arguments(section)
    return env_class(**arguments)


def make_unchanged(section: Mapping[str, Any], source: str) -> TextEnv:
    """Make an environment in a process of a run, from the source with which the run began.

    Args:
        section: as in `make`.
        source: digest of the environment's source, from `environment_digest`.

    Raises:
        UserError: as in `make`, or the source has changed.
    """
    env = make(section)
    if environment_digest(section) != source:
        env.close()
        about = "its source has changed since the run began"
        raise UserError(f"environment {section['name']!r}: {about}; run the same command again")
    return env


def class_and_arguments(section: Mapping[str, Any]) -> tuple[type[TextEnv], dict[str, Any]]:
    """Return the class that an `env` section names, and its checked and converted arguments. Makes no environment.

    Raises:
        UserError: as in `make`, except for exceptions that the class raises.
    """
    arguments = dict(section)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        known_names = ", ".join(names("envs"))
        raise UserError(
            f'the env section names no environment; write name = "package.module:Class", or one of {known_names}'
        )
    env_class = resolve_class("envs", name, TextEnv)
    return env_class, checked(env_class, arguments, f"environment {name!r}", "env")
