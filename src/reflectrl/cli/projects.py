"""`init`, and what a name means: that of a recipe, or of a folder that `init` has made (`reflectrl run my_env`)."""

from __future__ import annotations

import importlib.util
import keyword
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.config import ModelConfig, Word, load_recipe, parse_overrides, read_recipe
from reflectrl.plugins import announced, suggestion
from reflectrl.types import UserError

EnvName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
FILES = {
    "environment.py.txt": "__init__.py",
    "test.py.txt": "test_my_env.py",
    "recipe.toml.txt": "recipe.toml",
    "README.md.txt": "README.md",
}
"""Template → what it is called in a project; "my_env" and "MyEnv" stand for its names."""
TAKEN = ("Outcome", "Task", "TextEnv")
"""What the template imports."""


@dataclass(frozen=True)
class Init:
    """Begin a project: an environment that works, its test, a recipe and a README, to be edited."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """What it is called: a folder of that name is made here, which is a Python package (my_env)."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the files, all or none, and say what to do next.

        Raises:
            UserError: the name cannot be that of a package, or is taken.
        """
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; init has none")
        folder = Path(refuse_name(self.name))
        fresh = Path(f"{folder}.{os.getpid()}.new")
        try:
            fresh.mkdir()
            for template, name in FILES.items():
                text = files("reflectrl").joinpath("templates", template).read_text(encoding="utf-8")
                text = text.replace("MyEnv", class_name(folder.name)).replace("my_env", folder.name)
                (fresh / name.replace("my_env", folder.name)).write_text(text, encoding="utf-8")
            fresh.rename(folder)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise UserError(f"{folder}: {error.strerror}") from error
        print(f"{folder}/ holds an environment that works. Edit {folder}/__init__.py, then:")
        for verb, words in (("check-env", ""), ("run", " --arms random,rl-only"), ("play", "")):
            print(f"  reflectrl {verb} {folder}{words}")


def refuse_name(name: str) -> str:
    """The name, if a project can have it: one that Python can import, and that nothing else has.

    Raises:
        UserError: says what is wrong with it.
    """
    if not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
        raise UserError(f"{name!r} is no name of a Python package: a letter, then letters, digits and _, as in my_env")
    for path in Path(name), Path(f"{name}.py"):
        if path.exists():
            raise UserError(f"{path} is there already; nothing was written")
    if name in (*announced("envs"), *recipes()) or importlib.util.find_spec(name) is not None:
        raise UserError(f"{name!r} is the name of something that is installed; choose another one")
    if class_name(name) in TAKEN:
        raise UserError(f"{name!r} would call its class {class_name(name)}, as one of reflectrl is; choose another one")
    return name


def class_name(name: str) -> str:
    """my_env -> MyEnv."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Env"


# ---- what a name on the command line means ---------------------------------------------------------------------------


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


def projects() -> list[str]:
    """The folders here that hold a project."""
    return [path.parent.name for path in sorted(Path().glob("*/recipe.toml")) if project_recipe(path.parent.name)]


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
    path, known = project_recipe(name), announced("envs")
    if path is None and ":" not in name and name not in known:
        own = "yours is package.module:Class, or a folder that `reflectrl init` has made"
        raise UserError(f"unknown environment {name!r}{suggestion(name, [*known, *projects()])}; {own}")
    if path is None or name in known:
        return {"name": name} | dict(pairs)
    typed = [*own_environment(path), *(f"env.{key}={value}" for key, value in pairs)]
    return dict(load_recipe(path, typed).env)


def model_section(name: str) -> ModelConfig:
    """The model that a project's recipe trains; the default one of what is no project."""
    path = project_recipe(name)
    return ModelConfig() if path is None or name in announced("envs") else read_recipe(path).model
