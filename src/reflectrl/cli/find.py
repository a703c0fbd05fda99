"""Recipes by name: the user's own folder first, then those of a checkout, then those that were installed."""

from __future__ import annotations

from pathlib import Path

import reflectrl
from reflectrl.plugins import suggestion
from reflectrl.types import UserError


def folders() -> list[Path]:
    """Where recipes are looked for, first found first taken."""
    package = Path(reflectrl.__file__).resolve().parent
    return [
        folder for folder in (Path("recipes"), package.parents[1] / "recipes", package / "recipes") if folder.is_dir()
    ]


def recipes() -> dict[str, Path]:
    """Every recipe that can be named, by name."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return found


def find_recipe(word: str) -> Path:
    """The file that a word of the command line means: a path, or the name of a recipe.

    Raises:
        UserError: neither; suggests the nearest name.
    """
    path = Path(word)
    if path.is_file() or path.suffix == ".toml":
        return path
    known = recipes()
    if word not in known:
        raise UserError(f"unknown recipe {word!r}{suggestion(word, known)}; give a name or the path of a TOML file")
    return known[word]


def summary(path: Path) -> str:
    """The first comment of a recipe, or ""."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline().strip()
    return first.removeprefix("#").strip() if first.startswith("#") else ""
