"""Which packages repositories come from: the table `packages.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Pin(NamedTuple):
    """A package, and which release of it.

    Attributes:
        package: its name on a package index.
        version: "" is the newest.
        file: name of its source distribution (or wheel, where that is far smaller); "" is whatever there is.
        sha256: of that file; "" is what the index says.
        split: of the library.
        repo: owner/name of its repository, where imported questions name it.
    """

    package: str
    version: str = ""
    file: str = ""
    sha256: str = ""
    split: str = "train"
    repo: str = ""


@cache
def pins() -> tuple[Pin, ...]:
    """The whole table, in its order."""
    table = tomllib.loads(
        files("reflectrl.wings.autoexplore.making").joinpath("packages.toml").read_text(encoding="utf-8")
    )
    return tuple(_pin(split, key, row) for split, rows in table.items() for key, row in rows.items())


def _pin(split: str, key: str, row: dict[str, str]) -> Pin:
    repo = key if "/" in key else ""
    return Pin(row.get("package", key), row["version"], row["file"], row["sha256"], split, repo)


def pin_of(repo: str) -> Pin:
    """The package of a repository (owner/name): from the table, or else the newest release of its own name."""
    known = {pin.repo: pin for pin in pins() if pin.repo}
    return known.get(repo) or Pin(repo.rpartition("/")[2], split="imported", repo=repo)
