"""Checks of the files in a model's folder before a library reads them. Imports no torch.

The folder may come from an untrusted source. So these checks refuse pipes and devices, names of files outside the
folder, impossible sizes, and patterns that a library would match for ever. Checks that are possible only while a model
is built are in `strangers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from reflectrl.core.digests import require_undamaged
from reflectrl.core.types import UserError
from reflectrl.models.cards import read_json
from reflectrl.models.patterns import growth, is_runaway

MOST_LAYERS = 100_000
"""Largest number that `config.json` may give for any count of modules."""
COUNTED = re.compile(r"layer|block|depth|stage|expert")
"""Keys of `config.json` whose whole numbers are counts of modules."""
MOST_GROWTH = 1000
"""Largest factor by which a tokenizer's replacements may lengthen a text."""


def require_sound(folder: Path, trusted: bool = False) -> None:
    """Refuse a folder with files that are damaged, that never end, or that would keep a library busy for ever.

    Args:
        folder: the model's folder. A path without a folder passes.
        trusted: True if the user trusts this model's code. The tokenizer's patterns are not checked then.

    Raises:
        UserError: names the file and what is wrong with it.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is not a regular file")
    require_undamaged(folder)
    for path in sorted(folder.glob("*.index.json")):
        _require_inside(path)
    if (folder / "config.json").is_file():
        _require_readable(folder / "config.json")
    if (folder / "tokenizer.json").is_file() and not trusted:
        _require_quick(folder / "tokenizer.json")


def _require_inside(index: Path) -> None:
    """Refuse an index that names shards outside its own folder."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict):
        raise UserError(f"{index} must map names of tensors to files ('weight_map')")
    for name in shards.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise UserError(f"{index} names a file outside its folder: {str(name)[:100]!r}")


def _require_readable(path: Path) -> None:
    """Refuse a configuration with so many layers that reading it alone would take for ever."""
    try:
        for key, value in _leaves(read_json(path)):
            require_possible(key, value)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def require_possible(key: str, value: Any) -> None:
    """Raise ValueError if a setting gives a model more modules than any real model has."""
    if isinstance(value, int) and value > MOST_LAYERS and COUNTED.search(key):
        raise ValueError(f"{key[:100]!r} is {str(value)[:30]}; no model has so many")


def _require_quick(path: Path) -> None:
    """Refuse a tokenizer whose patterns may take for ever, or whose replacements make texts far too long."""
    content = read_json(path)
    advice = "set model.trust_remote_code = true if you know where this model comes from"
    for key, value in _leaves(content):
        if key == "Regex" and isinstance(value, str) and is_runaway(value):
            raise UserError(f"{path}: the pattern {value[:100]!r} may take for ever to match; {advice}")
    if prod(growth(content)) > MOST_GROWTH:
        raise UserError(f"{path}: its replacements would make a text more than {MOST_GROWTH} times as long; {advice}")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every scalar in a JSON value, with the key under which it is found."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value
