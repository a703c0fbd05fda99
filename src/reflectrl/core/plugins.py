"""Plug-ins: resolving a name to an object, by an installed package's entry point or by "package.module:Class".

Plug-ins that a recipe or a user names (environments, rewards, models, engines ...) are announced by entry points, those
of our own wings as well as those of other packages. All others of our own are listed in tables of the modules that
`own_modules` finds by import. So the core names no package beyond it, and any of them can be removed.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reflectrl.core.local_modules import look_here
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BY_PATH = ("envs", "rewards", "engines")
"""Kinds of plug-ins that may be named by import path. In a recipe's file, such a name needs the user's trust."""
ENGINE = ("submit", "news", "close", "env_worker")
"""Methods of an engine, a class that makes artifacts and hosts environments elsewhere (`runs.workers.Engine`)."""

MOVED = {"reflectrl.envs.adapter:GymTextEnv": "reflectrl.core.envs.adapter:GymTextEnv"}
"""Old import paths in recipes and run folders, and the present ones."""


OWN_KINDS = ("verbs", "run_options", "listeners", "report_sections", "checks")
"""Kinds of plug-ins that our own modules list in tables, without entry points."""


def names(kind: str) -> list[str]:
    """Return the short names of a kind ("envs", "verbs" ...): our own, and those that installed packages announce."""
    return sorted({*_own_table(kind), *announced(kind)})


def announced(kind: str) -> dict[str, EntryPoint]:
    """Map names to entry points of the group "reflectrl.KIND", sorted by name. Missing modules are left out."""
    points = sorted(_entry_points(tuple(sys.path)).get(f"reflectrl.{kind}", []), key=lambda point: point.name)
    return {point.name: point for point in points if _is_there(point.module)}


@lru_cache
def _entry_points(path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    """Read the entry points of all installed packages, by group.

    Cached, because reading takes tens of milliseconds, and each new environment needs the entry points.
    """
    from importlib.metadata import entry_points  # brings email, and most errors are worded without it

    points = entry_points()
    return {group: [*points.select(group=group)] for group in points.groups if group.startswith("reflectrl.")}


@cache
def _is_there(module: str) -> bool:
    """Return whether a module can be found. A wing's folder may have been removed."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package around it is gone
        return False


def installed(kind: str) -> list[Any]:
    """Import all objects of a kind, our own and those that installed packages announce, in the order of their names."""
    return [resolve(kind, name) for name in names(kind)]


def table_modules() -> list[ModuleType]:
    """Import the modules with tables of arms (ARMS) or of sections of recipe keys (SECTIONS).

    They are our own, and the learning methods that other packages announce. A method is one module.
    """
    return [*own_modules(), *installed("methods")]


@cache
def own_modules() -> tuple[ModuleType, ...]:
    """Import our own modules with tables: the files of `methods`, and `parts.py` of `serving`, `tools` and wings."""
    methods = [f"reflectrl.methods.{name}" for name, is_folder in _members("reflectrl.methods") if not is_folder]
    wings = [f"reflectrl.wings.{name}.parts" for name, is_folder in _members("reflectrl.wings") if is_folder]
    parts = [name for name in ("reflectrl.serving.parts", "reflectrl.tools.parts", *wings) if _is_there(name)]
    return tuple(importlib.import_module(name) for name in (*methods, *parts))


def _members(package: str) -> list[tuple[str, bool]]:
    """List the members of our own package as (name, whether it is a folder); empty if the package was removed."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return [(module.name, module.ispkg) for module in pkgutil.iter_modules(folders)]


def _own_table(kind: str) -> dict[str, Callable[[], Any]]:
    """Return our own plug-ins of a kind: name → function that imports it, since many of them are slow to import."""
    table: dict[str, Callable[[], Any]] = {}
    if kind in OWN_KINDS:
        for module in own_modules():
            table |= getattr(module, kind.upper(), {})
    return table


def resolve(kind: str, name: str) -> Any:
    """Import the object with this name.

    Raises:
        UserError: the name is unknown (the message suggests the nearest name), or importing failed.
    """
    if ":" in name and kind in BY_PATH:
        look_here(name.partition(":")[0].strip())
        return _import(kind, name)
    table = _own_table(kind)
    if name in table:
        return table[name]()
    points = announced(kind)
    if name not in points:
        raise UserError(f"unknown {kind.rstrip('s')} {name!r}{suggestion(name, names(kind))}")
    return _import(kind, points[name].value)


def resolve_class(kind: str, name: str, base: type) -> type[Any]:
    """Import the class with this name. Anything else is refused and never called, since it might do anything.

    Raises:
        UserError: as in `resolve`, or the object is not a class derived from `base`.
    """
    target = resolve(kind, name)
    if not (inspect.isclass(target) and issubclass(target, base)):
        description = f"a {type(target).__name__}"
        if inspect.isclass(target):
            description = f"the class {target.__name__}"
        raise UserError(
            f"{kind.rstrip('s')} {name!r} must be a class derived from {base.__name__}; it is {description}"
        )
    return target


def resolve_engine(name: str) -> type[Any]:
    """Import the engine with this name. Objects without all methods of an engine are refused and never called.

    Raises:
        UserError: as in `resolve`, or the object is not an engine.
    """
    engine = resolve("engines", name)
    needs = f"engine {name!r} must be a class with submit(), news(), close() and env_worker()"
    if not inspect.isclass(engine):
        raise UserError(f"{needs}; it is a {type(engine).__name__}")
    for method in ENGINE:
        if not callable(getattr(engine, method, None)):
            raise UserError(f"{needs}; it has no {method}()")
    return engine


MOST_LISTED = 24
"""Largest number of known words that a message lists. Of more, it names the nearest."""


def suggestion(word: str, options: Iterable[str]) -> str:
    """Return ' (did you mean "x"?)' if a known word is similar or has its initials, else ' (known: a, b, c)'."""
    options = list(options)
    word = word[:200]  # comparing takes time in proportion to the length of both
    initials = "".join(part[:1] for part in word.replace("-", "_").split("_"))  # "lr" for "learning_rate"
    matches = difflib.get_close_matches(word, options, n=1) or [option for option in options if option == initials]
    if matches:
        return f" (did you mean {matches[0]!r}?)"
    if len(options) > MOST_LISTED:
        nearest = difflib.get_close_matches(word, options, n=6, cutoff=0.0)
        return f" (the nearest of {len(options)}: {', '.join(nearest)})"
    if options:
        return f" (known: {', '.join(options)})"
    return ""


def _import(kind: str, target: str) -> Any:
    target = MOVED.get(target, target)
    module, _, attribute = target.partition(":")
    failure = f"{kind.rstrip('s')} plug-in {target!r} cannot be loaded"
    if module.endswith(".py") or not all(map(str.isidentifier, module.split("."))):
        raise UserError(f"{failure}: a module is named by dots, without .py: package.module:Class")
    try:
        module_object = imported = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            if not hasattr(imported, part):
                raise UserError(f"{failure}: {module} has no {part!r}{_near(part, module_object)}")
            imported = getattr(imported, part)
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:  # a plug-in may raise anything while it is imported
        raise UserError(f"{failure}: {one_line(error)}") from error
    return imported


def _near(word: str, module: ModuleType) -> str:
    """Suggest a similar name among the classes and functions that a module defines itself."""
    own_names = [name for name, member in vars(module).items() if getattr(member, "__module__", "") == module.__name__]
    return suggestion(word, own_names)


def reason(error: BaseException) -> str:
    """Return the reason of an error in a few words: the system's text, else the message, else the error's type.

    OSErrors that a library raises itself (for safetensors files or archives) have no text from the system.
    """
    words = getattr(error, "strerror", None) or str(error)
    return " ".join(str(words).split()) or type(error).__name__


def one_line(error: BaseException) -> str:
    """Return an exception as one line: its type, and its message without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
