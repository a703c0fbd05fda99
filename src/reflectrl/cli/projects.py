"""What a name on the command line means: a recipe's, an environment's, or that of a project's folder.

A project is a folder that holds a Python package with an environment, and a `recipe.toml`; `reflectrl init` makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.config import Word, load_recipe, parse_overrides, read_recipe
from reflectrl.plugins import announced, suggestion
from reflectrl.types import UserError

EnvName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


def folders() -> list[Path]:
    """Folders in which recipes are looked for; the first match counts."""
    packages = [Path(str(files(point.module))) for point in announced("recipes").values()]
    return [folder for folder in (Path("recipes"), *(path / "recipes" for path in packages)) if folder.is_dir()]


def recipes() -> dict[str, Path]:
    """Every recipe that has a name, by name."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def project_recipe(word: str) -> Path | None:
    """The recipe of the project in the folder of that name; None if there is no such project."""
    path = Path(word) / "recipe.toml"
    return path if word.rstrip("/").isidentifier() and path.is_file() else None


def projects() -> list[str]:
    """The folders here that hold a project."""
    return [path.parent.name for path in sorted(Path().glob("*/recipe.toml")) if project_recipe(path.parent.name)]


def own_environment(path: Path) -> list[str]:
    """The environment of a project as an option, as if the user had typed it.

    By naming a folder, the user also names the package in it, so no further consent is needed. Other code that the
    recipe names must still be trusted.

    Args:
        path: the project's recipe.
    """
    name = str(read_recipe(path).env.get("name", ""))
    return [f"env.name={name}"] if name.partition(":")[0].split(".")[0] == path.parent.name else []


def env_section(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """The `env` section that a name and the settings after it (`--key value`, `--env.key value`) describe."""
    pairs = [(key.removeprefix("env."), Word(value)) for key, value in parse_overrides(settings)]
    path, known = project_recipe(name), announced("envs")
    if path is None and ":" not in name and name not in known:
        own = "yours is package.module:Class, or a folder that `reflectrl init` has made"
        raise UserError(f"unknown environment {name!r}{suggestion(name, [*known, *projects()])}; {own}")
    if path is None or name in known:
        return {"name": name} | dict(pairs)
    typed = [*own_environment(path), *(f"env.{key}={value}" for key, value in pairs)]
    return dict(load_recipe(path, typed).env)
