"""Names on the command line: of recipes, and of environments."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.core.plugins import announced

EnvName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]


def folders() -> list[Path]:
    """Return the folders with recipes, in order of precedence."""
    packages = [Path(str(files(point.module))) for point in announced("recipes").values()]
    return [folder for folder in (Path("recipes"), *(path / "recipes" for path in packages)) if folder.is_dir()]


def recipes() -> dict[str, Path]:
    """Return the files of all recipes that have a name, by name."""
    paths: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            paths.setdefault(path.stem, path)
    return paths
