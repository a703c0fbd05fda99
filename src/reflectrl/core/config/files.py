"""Recipes as TOML: read them with overrides, and write them so that reading gives the same recipe back."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectrl.core.advice import is_typed
from reflectrl.core.config.recipe import Recipe
from reflectrl.core.config.trust import needing_trust, require
from reflectrl.core.config.values import Word, from_dict
from reflectrl.core.regular_files import read_regular
from reflectrl.core.types import UserError

LONGEST = 2**20
"""Longest recipe, in characters."""
PARTS = 100
"""Largest number of parts of a dotted key. `env.settings.size` has three."""
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:\s*+\.\s*+{_PART}){{{PARTS}}}")


Overrides = Sequence[str] | Mapping[str, Any]
"""Values that replace a file's: words such as `["--rl.lr", "1e-4"]` or `["rl.lr=1e-4"]`, or plain values by section and
key: `{"rl": {"lr": 1e-4}}`."""


def load_recipe(path: str | Path, overrides: Overrides = (), trust: bool = False) -> Recipe:
    """Read a recipe that is going to be run, and apply overrides: `["rl.lr=1e-4"]` or `{"rl": {"lr": 1e-4}}`.

    A recipe without a `name` is named after its file. If a key is overridden twice, the later value counts.

    Args:
        path: the file; a text or a `Path`.
        overrides: values that replace the file's. What they name needs no trust.
        trust: allow the file to name code, addresses and secrets (see `trust.py`), now and in the future.

    Raises:
        UserError: the file is missing or not TOML, a key is unknown, a value has the wrong type or range, or the file
            names code, an address or a secret that is neither named in the overrides nor trusted by the user.
    """
    recipe, data = _read(Path(path), overrides)
    overridden = needing_trust(overrides) if isinstance(overrides, Mapping) else {}
    named = {key: name for key, name in needing_trust(data).items() if overridden.get(key) != name}
    require(Path(path), named, trust)
    return recipe


def read_recipe(path: str | Path, overrides: Overrides = ()) -> Recipe:
    """Read a recipe for display only. Do not run it: it may name code and addresses that the user has not trusted.

    Raises:
        UserError: as in `load_recipe`, except that nothing needs trust.
    """
    return _read(Path(path), overrides)[0]


def _read(path: Path, overrides: Overrides) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe, and the plain values it was made from."""
    try:
        data = parse_toml(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise UserError(f"recipe {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"recipe {path}: not valid TOML: {error}") from error
    data.setdefault("name", path.stem)
    merged = _overridden(data, overrides)
    try:
        return from_dict(Recipe, merged, where=str(path)), merged
    except UserError:
        from_dict(Recipe, data, where=str(path))  # raises, naming the file, if the file is wrong without the overrides
        return from_dict(Recipe, merged, where="the command line" if is_typed() else "the given settings"), merged


def _overridden(data: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the plain values of a file, with the overrides applied."""
    merged = copy.deepcopy(dict(data))
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            is_section = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if is_section else value
    else:
        for key, text in parse_overrides(overrides):
            _assign(merged, key, text)
    return merged


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a text of TOML that may come from a stranger.

    Raises:
        ValueError: it is not valid or too long, or one of its keys has too many parts. (The parser's time grows with
            the square of their number.)
        RecursionError: it is nested too deeply.
    """
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters")
    if LONG_KEY.search(text):
        raise ValueError(f"a key has more than {PARTS} parts")
    return tomllib.loads(text)


def parse_overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    """Parse overrides: `--a.b value`, `--a.b=value` and `a.b=value` → [("a.b", "value")].

    Dashes in a key mean underscores. A value may begin with one dash (a negative number), but with two only if it is
    joined by "=".

    Raises:
        UserError: a word has none of these forms, or its value is missing.
    """
    pairs: list[tuple[str, str]] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            if not word.startswith("--"):
                form = "--key value" if is_typed() else "key=value"
                raise UserError(f"unexpected word {word!r} (overrides are written {form})")
            if not remaining or remaining[0].startswith("--"):
                raise UserError(f"{word} needs a value (write {word} value)")
            value = remaining.pop(0)
        pairs.append((key.replace("-", "_"), value))
    return pairs


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML. `from_dict` of the parsed text gives an equal recipe."""
    plain = recipe.plain()
    tables = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {to_toml_value(value)}" for key, value in plain.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(key)} = {to_toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _assign(data: dict[str, Any], dotted: str, value: str) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UserError(f"override {dotted!r}: {parent!r} is not a section")
    data[last] = Word(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(value: str) -> str:
    """Return a TOML basic string: JSON's escapes, and escapes for unprintable characters that JSON leaves alone."""
    written = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in written)


def to_toml_value(value: Any) -> str:
    """Return a value as TOML, on one line. Raises TypeError if TOML cannot express it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {to_toml_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{value!r} cannot be written as TOML")
