"""Modules under the names that they had in earlier versions, for environments that were written then.

`bridge` gives the module that calls it, and modules below it, their present content. Classes are the same objects under
both names. One line says where to import from; it is printed once per process, and not by worker processes.
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

LOG = logging.getLogger(__name__)

_said: list[str] = []


def bridge(old: str, present: str, inner: Mapping[str, str] | None = None) -> None:
    """Let an old module name stand for a present module.

    Args:
        old: name of the module that is being imported.
        present: name of the module that has its content now; "" if it had none.
        inner: modules below the old one: last part of the old name → present name. Missing modules are left out.
    """
    _tell(old)
    if inner is None:
        sys.modules[old] = import_module(present)
        return
    # A module with others below it keeps its own name, by which Python looks for them.
    package = sys.modules[old]
    if present:
        package.__getattr__ = partial(getattr, import_module(present))  # type: ignore[method-assign]
    for name, target in inner.items():
        with suppress(ModuleNotFoundError):  # the room around it was removed
            sys.modules[f"{old}.{name}"] = import_module(target)
            setattr(package, name, sys.modules[f"{old}.{name}"])


def _tell(old: str) -> None:
    """Print once, naming the file that imports the module, unless a worker process repeats what its parent did."""
    if _said or multiprocessing.parent_process() is not None:
        return
    _said.append(old)
    advice = "environments import from reflectrl itself: from reflectrl import Outcome, Task, TextEnv"
    LOG.warning("reflectrl: %s imports %s, a name of an earlier version; %s", _importer(), old, advice)


def _importer() -> str:
    """Return the file that imports an old name: the first caller that is neither this package nor Python's import."""
    package = str(Path(__file__).parents[1])
    frame = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((package, "<frozen")):
            return file
        frame = frame.f_back  # type: ignore[assignment]
    return "a module"
