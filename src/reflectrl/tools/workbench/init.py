"""`init`: begin a project, with a working environment to edit."""

from __future__ import annotations

import importlib.util
import keyword
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from reflectrl.cli.projects import recipes
from reflectrl.core.config.folders import writing
from reflectrl.core.plugins import announced
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.tools.workbench.gym_project import GymProject

FILES = {
    "environment.py.txt": "__init__.py",
    "test.py.txt": "test_my_env.py",
    "recipe.toml.txt": "recipe.toml",
    "README.md.txt": "README.md",
}
"""Template → its file name in a project. "my_env" and "MyEnv" stand for the project's names."""
TAKEN = ("GymTextEnv", "Outcome", "Task", "TextEnv", "View")
"""Names that the templates import."""


@dataclass(frozen=True)
class Init:
    """Begin a project: a working environment, its test, a recipe and a README, all to be edited."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the project. A folder with this name is made here, which is a Python package (my_env)."""
    gym: str = ""
    """Begin with an environment of gymnasium, by its id: FrozenLake-v1, MiniGrid-DoorKey-5x5-v0, my_module:Name-v0."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write all files or none, and print the next steps.

        Raises:
            UserError: the name is not a package name, or is taken, or the environment cannot be made or put into words.
        """
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; init has none")
        folder = Path(refuse_name(self.name))
        files_of_project, assumed = template_files(folder.name), ""
        if self.gym:
            from reflectrl.tools.workbench.gym_project import look_at  # gymnasium is slow to import

            looked_at = look_at(self.gym)
            files_of_project |= gym_files(looked_at, folder.name)
            assumed = looked_at.assumption
        temp_folder = Path(f"{folder}.{os.getpid()}.new")
        with writing(folder, temp_folder):
            temp_folder.mkdir()
            for name, text in files_of_project.items():
                (temp_folder / name).write_text(text, encoding="utf-8")
            temp_folder.rename(folder)
        if assumed:
            print(assumed)
        print(f"{folder}/ holds an environment that works. Edit {folder}/__init__.py, then:")
        for verb, words in (("check-env", ""), ("run", " --arms random,rl-only"), ("play", "")):
            print(f"  reflectrl {verb} {folder}{words}")


def template_files(project: str) -> dict[str, str]:
    """Return the files of a new project: name → text."""
    return {name.replace("my_env", project): template(source, project) for source, name in FILES.items()}


def gym_files(looked_at: GymProject, project: str) -> dict[str, str]:
    """Return the files that differ in a project that plays an environment of gymnasium: name → text."""
    code = looked_at.environment(raw("gym_environment.py.txt"), class_name(project), project)
    return {"__init__.py": code, "record.py": template("record.py.txt", project)}


def template(source: str, project: str) -> str:
    """Return a template in which the project's names stand for "my_env" and "MyEnv"."""
    return raw(source).replace("MyEnv", class_name(project)).replace("my_env", project)


def raw(source: str) -> str:
    """Return the text of a template as it is in the package."""
    return files("reflectrl.tools.workbench").joinpath("templates", source).read_text(encoding="utf-8")


def refuse_name(name: str) -> str:
    """Return the name if a project can have it: Python must be able to import it, and it must not be taken.

    Raises:
        UserError: names the problem.
    """
    if not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
        raise UserError(f"{name!r} is not a valid package name: a letter, then letters, digits and _, as in my_env")
    for path in Path(name), Path(f"{name}.py"):
        if path.exists():
            raise UserError(f"{path} already exists; nothing was written")
    if name in (*announced("envs"), *recipes()) or importlib.util.find_spec(name) is not None:
        raise UserError(f"{name!r} is the name of an installed module or recipe; choose another name")
    if class_name(name) in TAKEN:
        raise UserError(f"{name!r} would name its class {class_name(name)}, as reflectrl does; choose another name")
    return name


def class_name(name: str) -> str:
    """Convert a name: my_env -> MyEnv."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Env"
