"""Projects: folders with a Python package for an environment and a `recipe.toml`, as `reflectrl init` makes them.

The command line and the Python API find them here, so that a name means the same to both.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reflectrl.core.advice import option
from reflectrl.core.config import Recipe, Word, load_recipe, parse_overrides, read_recipe
from reflectrl.core.plugins import announced, suggestion
from reflectrl.core.types import UserError
from reflectrl.runs.arms import select_arms

RECIPE = "recipe.toml"


def project_recipe(word: str) -> Path | None:
    """Return the path of the recipe of the project in this folder; None if there is no such project."""
    path = Path(word) / RECIPE
    return path if word.rstrip("/").isidentifier() and path.is_file() else None


def projects() -> list[str]:
    """Return the names of the project folders in the current folder."""
    return [path.parent.name for path in sorted(Path().glob(f"*/{RECIPE}")) if project_recipe(path.parent.name)]


def own_environment(path: Path) -> list[str]:
    """Return a project's own environment as an option, as if the user had typed it; empty if it has none.

    By naming a folder, the user also names the package in it, so no further consent is needed. Other code that the
    recipe names must still be trusted.

    Args:
        path: path of the project's recipe.
    """
    name = str(read_recipe(path).env.get("name", ""))
    return [f"env.name={name}"] if name.partition(":")[0].split(".")[0] == path.parent.name else []


def recipe_of_class(kind: type) -> Path | None:
    """Return the path of a class's project recipe: the file in its package, if it names this class."""
    package = sys.modules.get(kind.__module__.partition(".")[0])
    if package is None or not getattr(package, "__file__", None):
        return None
    path = Path(str(package.__file__)).parent / RECIPE
    if not path.is_file() or path.parent.name != package.__name__:
        return None
    module, _, attribute = str(read_recipe(path).env.get("name", "")).partition(":")
    return path if getattr(sys.modules.get(module), attribute, None) is kind else None


def require_environment(name: str) -> None:
    """Refuse a name that is neither an installed environment, nor a project, nor an import path.

    Raises:
        UserError: the name is unknown. The message suggests the nearest name.
    """
    environments = announced("envs")
    if ":" not in name and name not in environments and project_recipe(name) is None:
        own = "for your own, give package.module:Class, or a folder that `reflectrl init` has made"
        raise UserError(f"unknown environment {name!r}{suggestion(name, [*environments, *projects()])}; {own}")


def recipe_named(name: str) -> Path | None:
    """Return the path of the recipe if an environment's name means a project; None if it means no project.

    Raises:
        UserError: the name is unknown.
    """
    require_environment(name)
    return None if ":" in name or name in announced("envs") else project_recipe(name)


def env_section(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return the `env` section for a name and the settings after it (`--key value`, `--env.key value`)."""
    pairs = [(key.removeprefix("env."), Word(value)) for key, value in parse_overrides(settings)]
    path = recipe_named(name)
    if path is None:
        return {"name": name} | dict(pairs)
    typed = [*own_environment(path), *(f"env.{key}={value}" for key, value in pairs)]
    return dict(load_recipe(path, typed).env)


def with_learner(recipe: Recipe, named: Collection[str]) -> tuple[Recipe, str]:
    """Make sure that a recipe with demonstrations has an arm that learns from them.

    If neither the recipe nor the caller names such an arm, it replaces the arms that learn without demonstrations. The
    run then gets a name of its own, because models from scratch depend on the text of the demonstrations.

    Args:
        named: keys that the caller has set. Arms or a name among them are left unchanged.

    Returns:
        The recipe, and a note on what was changed or would help ("" for none).
    """
    if recipe.teach.by != "log" or any(arm.is_taught for arm in select_arms(recipe.arms, recipe).values()):
        return recipe, ""
    log = ", ".join(recipe.teach.log)
    if "arms" in named:
        return recipe, f"{', '.join(recipe.arms)}: nothing learns from {log}; {option('arms', ['no-reflection'])} would"
    from reflectrl.runs.demonstrations import best_taught  # slow to import

    others = [name for name, arm in select_arms(recipe.arms, recipe).items() if not arm.policy]
    arms, name = (*others, best_taught(recipe)), recipe.name if "name" in named else f"{recipe.name}-shown"
    changed: Mapping[str, Any] = {"arms": arms, "name": name}
    options = " ".join(option(key, value) for key, value in changed.items())
    return replace(recipe, **changed), f"no arm of the recipe learns from {log}, so this is run: {options}"
