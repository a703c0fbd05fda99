"""Recipes by name: those in the user's own folder `recipes/` first, then those of installed packages."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from reflectrl.plugins import announced, suggestion
from reflectrl.types import UserError


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
