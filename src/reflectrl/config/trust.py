"""Which code a recipe may run: code that the caller names, or that a file names which the caller trusts.

A recipe can name code that is neither part of reflectrl nor installed: a plug-in by import path ("module:Class"), and a
model's own code (`model.trust_remote_code`). Code that is named on the command line or in Python runs. Code that is
named by a file (any recipe, also that of a run folder) runs only if the caller has said so once, or has started that
run on this machine. What is trusted is remembered outside the file's folder, so no folder can declare itself trusted.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reflectrl.advice import is_typed, option
from reflectrl.config.recipe import brought
from reflectrl.config.values import FreeSection, Word
from reflectrl.types import UserError

SLOTS = ("name", "id", "use")
"""Keys whose values are looked up as names: if such a value contains a ":", it is an import path."""
IMPORT_PATH = re.compile(r"[^\s/\\:]+:(?!//|\\)\S+")
"""What an import path looks like anywhere else, for instance in an argument of an environment."""
REMOTE_CODE = "model.trust_remote_code"


def code_in(recipe: Mapping[str, Any]) -> dict[str, str]:
    """The foreign code that a recipe's plain values name: dotted key → name.

    Left out are names that were typed on the command line (each is a `Word`), and names within reflectrl.
    """
    model = recipe.get("model", {})
    free = ["env", *(name for name, kind in brought().items() if issubclass(kind, FreeSection) and kind.names_code)]
    found = {key: name for section in free for key, name in _named(recipe.get(section, {}), section)}
    if model.get("trust_remote_code") and not isinstance(model["trust_remote_code"], Word):
        found[REMOTE_CODE] = f"true (the own code of model {' and '.join(_sources(model))})"
    return found


def _sources(model: Mapping[str, Any]) -> list[str]:
    given = [str(model[key]) for key in ("source", "policy", "reflector") if model.get(key)]
    return [repr(name) for name in dict.fromkeys(given or ["scratch"])]


def _named(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(item, Word):
                yield from _named(item, f"{key}.{name}")
                if _is_foreign(name, looked_up=True):  # of a reward, the key itself may be the import path
                    yield f"{key}.{name}", name
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _named(item, f"{key}[{i}]")
    elif isinstance(value, Word) or not isinstance(value, str):
        return
    elif _is_foreign(value, looked_up=key.rpartition(".")[2] in SLOTS):
        yield key, value


def _is_foreign(name: str, looked_up: bool) -> bool:
    return bool(":" in name if looked_up else IMPORT_PATH.fullmatch(name)) and not name.startswith("reflectrl.")


def require(file: Path, code: Mapping[str, str], trust: bool = False, typed: bool = True) -> None:
    """Refuse code that a file names, unless the file is trusted.

    Args:
        code: the code it names, as `code_in` returns it.
        trust: whether the caller trusts it; this is remembered.
        typed: whether the verb has options for recipe keys, so that the caller could name the code there instead.

    Raises:
        UserError: it is not trusted; names the code, and how to allow it.
    """
    if trust:
        remember(file, code)
        return
    unknown = {key: name for key, name in code.items() if f"{key} = {name}" not in _read().get(_key(file), ())}
    if not unknown:
        return
    what = ", ".join(f"{key} = {name}" for key, name in unknown.items())
    ways = f"say so once with {option('trust', True)}"
    if typed and is_typed() and all(re.fullmatch(r"[\w.]+", key) for key in unknown):  # options can name all of it
        options = (f"--{key} {shlex.quote(name.partition(' (')[0])}" for key, name in unknown.items())
        ways += f", or name it yourself: {' '.join(options)}"
    raise UserError(f"{file} wants to run code: {what}; if you trust it, {ways}")


def remember(file: Path, code: Mapping[str, str]) -> None:
    """Remember that the caller trusts this code in this file. If it cannot be saved, the caller is asked again."""
    if not code:
        return
    before = _read()
    known = before | {
        _key(file): sorted({*before.get(_key(file), ()), *(f"{key} = {name}" for key, name in code.items())})
    }
    if known == before:
        return
    path = _notes()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(known, indent=1), encoding="utf-8")
        fresh.replace(path)


def _key(file: Path) -> str:
    return str(file.expanduser().resolve())


def _notes() -> Path:
    """`reflectrl/trusted.json` in $XDG_CONFIG_HOME, which is ~/.config if not set."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "reflectrl" / "trusted.json"


def _read() -> dict[str, list[str]]:
    """File → the code that is trusted in it; empty if the notes are missing or damaged."""
    try:
        found = json.loads(_notes().read_text(encoding="utf-8"))
        return {str(file): list(code) for file, code in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
