"""Checks of the files in a model's folder before a library reads them: it may come from a stranger. Imports no torch.

Pipes and devices are refused, and so are names of files outside the folder, impossible sizes, and patterns that a
library would try for ever. What can be checked only while a model is built is in `strangers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from reflectrl.digests import require_undamaged
from reflectrl.models.cards import read_json
from reflectrl.models.patterns import growth, is_runaway
from reflectrl.types import UserError

MOST_LAYERS = 100_000
"""The largest number that `config.json` may give for anything that is counted in layers."""
COUNTED = re.compile(r"layer|block|depth|stage|expert")
"""Keys of `config.json` whose whole numbers are counts of modules."""
MOST_GROWTH = 1000
"""The most characters that a tokenizer may make of one."""


def require_sound(folder: Path, trusted: bool = False) -> None:
    """Refuse a folder with files that are damaged, that never end, or that would keep a library busy for ever.

    Args:
        folder: a path at which no folder is passes.
        trusted: allow patterns of the tokenizer that may take for ever; the user trusts this model's code.

    Raises:
        UserError: names the file and what is wrong with it.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is no regular file")
    require_undamaged(folder)
    for path in sorted(folder.glob("*.index.json")):
        _require_inside(path)
    if (folder / "config.json").is_file():
        _require_readable(folder / "config.json")
    if (folder / "tokenizer.json").is_file() and not trusted:
        _require_quick(folder / "tokenizer.json")


def _require_inside(index: Path) -> None:
    """Refuse an index whose shards lie anywhere but beside it."""
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
    """Raise ValueError where a setting gives a model more layers than any has."""
    if isinstance(value, int) and value > MOST_LAYERS and COUNTED.search(key):
        raise ValueError(f"{key[:100]!r} is {str(value)[:30]}; no model has so many")


def _require_quick(path: Path) -> None:
    """Refuse a tokenizer whose patterns may take for ever, or that makes too long a text of a short one."""
    found = read_json(path)
    advice = "set model.trust_remote_code = true if you know where this model comes from"
    for key, value in _leaves(found):
        if key == "Regex" and isinstance(value, str) and is_runaway(value):
            raise UserError(f"{path}: the pattern {value[:100]!r} may take for ever to match; {advice}")
    if prod(growth(found)) > MOST_GROWTH:
        raise UserError(f"{path}: its replacements would make a text more than {MOST_GROWTH} times as long; {advice}")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a JSON value that holds nothing else, with the key under which it is found."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, key)
    else:
        yield key, value
