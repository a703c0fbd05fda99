"""From a name to an object: a built-in name, "package.module:Class", or an installed entry point."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from reflectrl.types import UserError

BUILTIN: dict[str, dict[str, str]] = {
    "envs": {
        "taxi": "reflectrl.envs.taxi:TaxiEnv",
        "frozenlake": "reflectrl.envs.frozenlake:FrozenLakeEnv",
        "alfworld": "reflectrl.envs.alfworld:AlfworldEnv",
        "autoexplore": "reflectrl.envs.autoexplore.env:AutoExploreEnv",
    },
    "rewards": {
        "fluency": "reflectrl.rewards.components:Fluency",
        "faithfulness": "reflectrl.rewards.components:Faithfulness",
        "engagement": "reflectrl.rewards.components:Engagement",
        "upvote": "reflectrl.rewards.components:Upvote",
        "safety": "reflectrl.rewards.components:Safety",
        "diversity": "reflectrl.rewards.diversity:Diversity",
        "reward_model": "reflectrl.rewards.components:RewardModel",
        "comet_critic": "reflectrl.rewards.components:CometCritic",
        "order_relevance": "reflectrl.rewards.orders:Relevance",
        "order_politeness": "reflectrl.rewards.orders:Politeness",
        "order_economy": "reflectrl.rewards.orders:Economy",
    },
}


def names(kind: str) -> list[str]:
    """The short names known for a kind ("envs"): built in first, then those that installed packages announce."""
    found = [point.name for point in entry_points(group=f"reflectrl.{kind}")]
    return [*BUILTIN.get(kind, {}), *sorted(set(found) - set(BUILTIN.get(kind, {})))]


def resolve(kind: str, name: str) -> Any:
    """The object that a name stands for.

    Raises:
        UserError: nothing goes by that name (with the nearest one), or importing it failed.
    """
    if name in BUILTIN.get(kind, {}):
        return _import(kind, BUILTIN[kind][name])
    if ":" in name:
        look_here()
        return _import(kind, name)
    for point in entry_points(group=f"reflectrl.{kind}"):
        if point.name == name:
            return _import(kind, point.value)
    raise UserError(f"unknown {kind.rstrip('s')} {name!r}{suggestion(name, names(kind))}")


def resolve_class(kind: str, name: str, base: type) -> type[Any]:
    """The class that a name stands for. Nothing else that can be called goes through: it might do anything.

    Raises:
        UserError: as `resolve`, or it is no class derived from `base`.
    """
    found = resolve(kind, name)
    if not (inspect.isclass(found) and issubclass(found, base)):
        what = f"the class {found.__name__}" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise UserError(f"{kind.rstrip('s')} {name!r} must be a class derived from {base.__name__}; it is {what}")
    return found


def look_here() -> None:
    """From now on, modules in the current folder can be imported, after all that is installed.

    Asked for only where somebody names such a module: otherwise a file in a folder that one happens to be in could
    stand in for a library that is not installed.
    """
    if "" not in sys.path:
        sys.path.append("")


def suggestion(word: str, known: Iterable[str]) -> str:
    """' (did you mean "x"?)' where a known word is near, else ' (known: a, b, c)'."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (known: {', '.join(known)})" if known else ""


def _import(kind: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plug-in may raise anything while it is imported
        raise UserError(f"{kind.rstrip('s')} plug-in {target!r} cannot be loaded: {one_line(error)}") from error
    return found


def one_line(error: BaseException) -> str:
    """An exception as one line: its type and its message without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
