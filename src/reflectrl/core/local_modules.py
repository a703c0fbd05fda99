"""Modules of the current folder, which may be a stranger's: importable only if the user has named them.

The current folder is not on `sys.path`. Libraries look for dozens of optional packages that are usually not installed
(`triton`, `torch_xla`, `hqq`), and on `sys.path` a file of the folder would take the place of any of them. Instead, a
finder behind all others finds the modules that `look_here` was told, and what these import from the same folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable that keeps a new Python process from putting its current folder on `sys.path`."""
STARTING = "until reflectrl has started"
"""Value of the variable in processes that this package starts. They remove it, so that programs of a user's own
environment, which they may start, find their modules as always."""


class LocalModules:
    """A finder for `sys.meta_path`: finds named modules of a folder, and modules that those import from it.

    Attributes:
        named: names of modules that the user named → folder.
        imported: names of modules that were found → folder. They may import others from there.
    """

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        self.imported: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module, as for every finder; None if the user has not named it."""
        if path is not None:  # a package finds its own modules
            return None
        folder = self.named.get(name) or self.imported.get(_importer())
        spec = PathFinder.find_spec(name, [folder], target) if folder else None
        if folder and spec is not None:
            self.imported[name] = folder
        return spec


FINDER = LocalModules()


def look_here(module: str) -> None:
    """Make a module of the current folder importable from now on, if nothing installed has its name.

    Call this only when the user names the module, on the command line or in a file that is trusted.
    """
    allow_modules({module.partition(".")[0]: str(Path.cwd())})


def allow_modules(modules: Mapping[str, str]) -> None:
    """Make modules importable, each from its folder. For processes that go on with the work of another one."""
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)
    FINDER.named.update(modules)
    for folder in modules.values():
        sys.path_importer_cache.pop(folder, None)  # a file may be newer than what was read of the folder


def allowed_modules() -> dict[str, str]:
    """Return modules and the folder of each, for `allow_modules` in another process."""
    return {**FINDER.imported, **FINDER.named}


def _importer() -> str:
    """Return the top-level name of the module that is importing, which may call importlib to do so."""
    frame = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib.", "_frozen_importlib")) and name != "importlib":
            return name.partition(".")[0]
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@contextmanager
def without_current_folder() -> Iterator[None]:
    """Start Python processes within the block without their current folder on `sys.path`.

    multiprocessing starts them by `python -c`, which would import `multiprocessing` itself from the folder.
    """
    if SAFE_PATH in os.environ:
        yield
        return
    os.environ[SAFE_PATH] = STARTING
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)


def begin_worker(modules: Mapping[str, str]) -> None:
    """Begin the work of a process that was started so. `modules` are those that its parent may import."""
    if os.environ.get(SAFE_PATH) == STARTING:
        del os.environ[SAFE_PATH]
    allow_modules(modules)
