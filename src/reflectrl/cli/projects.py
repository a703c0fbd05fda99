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
from reflectrl.plugins import announced

EnvName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


def folders() -> list[Path]:
    """Where recipes are looked for, first found first taken."""
    packages = [Path(str(files(point.module))) for point in announced("recipes").values()]
    return [folder for folder in (Path("recipes"), *(path / "recipes" for path in packages)) if folder.is_dir()]


def recipes() -> dict[str, Path]:
    """Every recipe that can be named, by name."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def project_recipe(word: str) -> Path | None:
    """The recipe of the project in the folder of that name, if there is one."""
    path = Path(word) / "recipe.toml"
    return path if word.rstrip("/").isidentifier() and path.is_file() else None


def own_environment(path: Path) -> list[str]:
    """The environment of a project as an option, as if it had been typed.

    Who names a folder names the package that lies in it, so that no more consent is asked for; other code that the
    recipe names has to be trusted as ever.

    Args:
        path: the project's recipe.
    """
    name = str(read_recipe(path).env.get("name", ""))
    return [f"env.name={name}"] if name.partition(":")[0].split(".")[0] == path.parent.name else []


def env_section(name: str, settings: Sequence[str]) -> dict[str, Any]:
    """The `env` section that a name, and `--key value` or `--env.key value` behind it, describe."""
    pairs = [(key.removeprefix("env."), Word(value)) for key, value in parse_overrides(settings)]
    path = project_recipe(name)
    if path is None or name in announced("envs"):
        return {"name": name} | dict(pairs)
    typed = [*own_environment(path), *(f"env.{key}={value}" for key, value in pairs)]
    return dict(load_recipe(path, typed).env)
