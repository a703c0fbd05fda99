"""`check-env`: the promises of an environment, tried; one line says which is broken or that all are kept."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from reflectrl.envs import make
from reflectrl.envs.base import SPLITS
from reflectrl.envs.check import EnvCheckError, check_text_env
from reflectrl.plugins import one_line
from reflectrl.types import UserError


def check(section: Mapping[str, Any]) -> str:
    """Try the environment that an `env` section describes.

    Returns:
        What was found, the warnings of gymnasium's checker included.

    Raises:
        UserError: the first broken promise, or what the environment's own code raised.
    """
    name = section["name"]
    env = make(section)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            abilities = check_text_env(functools.partial(make, section))
        sizes = [f"{len(env.tasks(split))} {split}" for split in SPLITS]
    except UserError:
        raise
    except EnvCheckError as error:
        raise UserError(f"environment {name!r} breaks a promise: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the environment's own code raises
        raise UserError(f"environment {name!r} raised {one_line(error)}") from error
    notes = [f"note: {one_line(warning.message)}" for warning in caught if isinstance(warning.message, Warning)]
    found = {"stages": env.stages, "tasks": sizes, "teacher": abilities or ["none"]}
    told = "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items())
    return "\n".join([*notes, f"{name}: every promise is kept ({told})"])
