"""Trust: only code, addresses and secrets that the caller or a trusted file names are used.

A recipe can name code that is neither part of reflectrl nor installed (a plug-in by import path, a model's own code),
addresses that are asked, and environment variables whose content is sent there. What is named on the command line or in
Python is used. What a file names (any recipe, including the copy in a run folder) is used only if the caller has said
so once, or has started that run on this machine. What is trusted is remembered outside the file's folder, so no folder
can declare itself trusted.

A key with a fixed name is declared in its type (`rules.NeedsTrust`). The keys of `env` and of free sections belong to
plug-ins, so there the values themselves are checked.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import shlex
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from reflectrl.core.advice import is_typed, option
from reflectrl.core.config.folders import user_folder
from reflectrl.core.config.recipe import Recipe, installed_sections
from reflectrl.core.config.rules import NeedsTrust
from reflectrl.core.config.values import FreeSection, Word
from reflectrl.core.regular_files import read_regular
from reflectrl.core.types import UserError

SLOTS = ("name", "id", "use")
"""Free keys whose values are looked up as names: if such a value contains a ":", it is an import path."""
IMPORT_PATH = re.compile(r"\s*[^\s/\\:]+:(?!//|\\)\S.*", re.DOTALL)
"""Form of an import path anywhere else, for instance in an argument of an environment."""
ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]*://.*", re.DOTALL | re.IGNORECASE)
"""Form of an address in a free section."""
REMOTE_CODE = "model.trust_remote_code"
WANTS = {
    "code": "run code",
    "address": "contact an address",
    "secret": "send the content of an environment variable",
    "account": "use an account of yours",
}
"""Actions that a file may ask for, by kind, in words."""


class Named(NamedTuple):
    """Something that a recipe names and that needs trust: its kind, as in `NeedsTrust`, and the value in words."""

    kind: str
    value: str


def needing_trust(recipe: Mapping[str, Any]) -> dict[str, Named]:
    """Find what needs trust among a recipe's plain values: dotted key → what it names.

    Values typed on the command line (each is a `Word`) and names within reflectrl are left out.
    """
    return dict(_declared(Recipe, recipe, ""))


def _declared(kind: type, table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Named]]:
    """Go through a table whose keys are the fields of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True) | (installed_sections() if kind is Recipe else {})
    for name, value in table.items():
        hint, key = hints.get(name), f"{prefix}{name}"
        rules = [rule for rule in getattr(hint, "__metadata__", ()) if isinstance(rule, NeedsTrust)]
        if isinstance(value, Word) or hint is None:
            continue
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            yield from _declared(typing.cast(type, hint), value, f"{key}.")
        elif isinstance(hint, type) and issubclass(hint, FreeSection):
            yield from _in_section(hint, value, key)
        elif rules and isinstance(value, Mapping):
            yield from _free(value, key)
        elif rules and (named := _marked(rules[0], value, key, table)):
            yield key, named


def _in_section(section: type[FreeSection], value: Any, key: str) -> Iterator[tuple[str, Named]]:
    """Go through a section whose keys the user chooses: free values, or tables of known keys."""
    if section.tables is None:
        yield from _free(value, key)
        return
    for name, table in value.items() if isinstance(value, Mapping) else ():
        if isinstance(table, Mapping):
            yield from _declared(section.tables, table, f"{key}.{name}.")


def _marked(mark: NeedsTrust, value: Any, key: str, table: Mapping[str, Any]) -> Named | None:
    """Return what the value of a marked key names; None if it is harmless."""
    if value is True:
        return Named(mark.kind, f"true (the own code of model {' and '.join(_sources(table))})")
    items = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    named = [str(item) for item in items if item and not isinstance(item, Word) and item not in mark.harmless]
    if mark.kind == "code":
        named = [name for name in named if _is_foreign(name, looked_up=True)]
    return Named(mark.kind, ",".join(named)) if named else None


def _sources(model: Mapping[str, Any]) -> list[str]:
    sources = [str(model[key]) for key in ("source", "policy", "reflector") if model.get(key)]
    return [repr(name) for name in dict.fromkeys(sources or ["scratch"])]


def _free(value: Any, key: str) -> Iterator[tuple[str, Named]]:
    """Go through values whose keys are arguments of plug-ins."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(item, Word):
                yield from _free(item, f"{key}.{name}")
                if _is_foreign(name, looked_up=True):  # the key of a reward may itself be an import path
                    yield f"{key}.{name}", Named("code", name)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _free(item, f"{key}[{i}]")
    elif isinstance(value, str) and not isinstance(value, Word) and (kind := _kind_of(value, key.rpartition(".")[2])):
        yield key, Named(kind, value)


def _kind_of(value: str, name: str) -> str:
    """Return the kind of a text under a free key: "code", "address" or "secret"; "" if it needs no trust."""
    if value and (name == "base_url" or (ADDRESS.fullmatch(value) and not is_loopback(_host(value)))):
        return "address"
    if value and name.endswith("_env"):
        return "secret"
    return "code" if _is_foreign(value, looked_up=name in SLOTS) else ""


def _is_foreign(name: str, looked_up: bool) -> bool:
    return bool(":" in name if looked_up else IMPORT_PATH.fullmatch(name)) and not name.startswith("reflectrl.")


def _host(address: str) -> str:
    """Return the host of an address; "" if clients could read it differently."""
    try:
        return "" if re.search(r"[\s\\]", address) else urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str | None) -> bool:
    """Tell whether a host is this machine's loopback, by its name alone: nothing is looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def require(file: Path, named: Mapping[str, Named], trust: bool = False, typed: bool = True) -> None:
    """Refuse what a file names, unless the file is trusted.

    Args:
        named: its names, as `needing_trust` returns them.
        trust: True if the caller trusts it. This is remembered.
        typed: True if the verb has options for recipe keys, so that the caller could name the same there.

    Raises:
        UserError: the file is not trusted. The message lists its names, and how to allow them.
    """
    if trust:
        remember(file, named)
        return
    trusted = _read().get(_key(file), ())
    unknown = {key: name for key, name in named.items() if _noted(key, name) not in trusted}
    if not unknown:
        return
    wishes = []
    for kind, words in WANTS.items():
        if assignments := [f"{key} = {name.value}" for key, name in unknown.items() if name.kind == kind]:
            wishes.append(f"{words}: {', '.join(assignments)}")
    remedy = f"say so once with {option('trust', True)}"
    if typed and is_typed() and all(re.fullmatch(r"[\w.]+", key) for key in unknown):  # options can name all of it
        options = (f"--{key} {shlex.quote(name.value.partition(' (')[0])}" for key, name in unknown.items())
        remedy += f", or name it yourself: {' '.join(options)}"
    raise UserError(f"{file} wants to {', and to '.join(wishes)}; if you trust it, {remedy}")


def remember(file: Path, named: Mapping[str, Named]) -> None:
    """Remember that the caller trusts this in this file. If it cannot be saved, the caller is asked again."""
    if not named:
        return
    before = _read()
    notes = sorted({*before.get(_key(file), ()), *(_noted(key, name) for key, name in named.items())})
    updated = before | {_key(file): notes}
    if updated == before:
        return
    with suppress(OSError, UserError):
        path = _notes()
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(json.dumps(updated, indent=1), encoding="utf-8")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _noted(key: str, name: Named) -> str:
    return f"{key} = {name.value}"


def _key(file: Path) -> str:
    return str(file.expanduser().resolve())


def _notes() -> Path:
    """Return `reflectrl/trusted.json` in $XDG_CONFIG_HOME, which is ~/.config if not set."""
    return user_folder("config") / "trusted.json"


def _read() -> dict[str, list[str]]:
    """Read the notes: file → its trusted names. Empty if they are missing or damaged."""
    try:
        notes = json.loads(read_regular(_notes()))
        return {str(file): list(code) for file, code in notes.items()}
    except (OSError, ValueError, AttributeError, TypeError, UserError):  # (without a home folder, nothing is noted)
        return {}
