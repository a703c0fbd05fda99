"""The reference of recipe keys, made from the dataclasses: `python -m reflectrl.core.config.reference`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import typing
from typing import Annotated, Any, Literal

from reflectrl.core.config import files, recipe
from reflectrl.core.config.rules import Matching
from reflectrl.core.config.values import FreeSection

HEAD = """# Recipe keys

A recipe is a TOML file; `reflectrl run RECIPE` fills the folder `runs/NAME`. Every key has a default, so that a recipe
holds only what it changes. Any key can be set for one run on the command line:
`reflectrl run taxi --rl.lr 1e-4 --seeds 0,1,2`. With `--dry-run` it prints the whole recipe and runs nothing.
What names code, an address or a secret may need trust where a file sets it ([trust.md](trust.md)).

This page is made by `make docs` from the dataclasses in `src/reflectrl/core/config/`, and from those that wings bring.
"""


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of a recipe: its section ("" for the top), its name, type in words, default as TOML, and description."""

    section: str
    name: str
    type: str
    default: str
    description: str

    @property
    def dotted(self) -> str:
        """Key as the command line takes it."""
        return f"{self.section}.{self.name}" if self.section else self.name


@functools.cache
def keys() -> tuple[Key, ...]:
    """Return every key of a recipe, sections of packages included. The keys of `env` depend on the environment."""
    found = _keys_of(recipe.Recipe, "")
    hints = typing.get_type_hints(recipe.Recipe)
    hints = {field.name: hints[field.name] for field in dataclasses.fields(recipe.Recipe)}
    for name, kind in {**hints, **recipe.brought()}.items():
        if dataclasses.is_dataclass(kind):
            found += _keys_of(typing.cast(type, kind), name)
        elif inspect.isclass(kind) and issubclass(kind, FreeSection):
            found.append(Key("", name, "table", "{}", inspect.getdoc(kind) or ""))
    return tuple(found)


def reference() -> str:
    """Return all keys as a Markdown page, with a table per section."""
    lines = [HEAD]
    for section in dict.fromkeys(key.section for key in keys()):
        lines += [
            f"## {f'[{section}]' if section else 'At the top'}",
            "",
            "| key | type | default | |",
            "|---|---|---|---|",
        ]
        lines += [
            "| "
            + " | ".join(_cell(text) for text in (f"`{key.name}`", key.type, f"`{key.default}`", key.description))
            + " |"
            for key in keys()
            if key.section == section
        ]
        lines.append("")
    return "\n".join(lines)


def _keys_of(kind: type, section: str) -> list[Key]:
    hints = typing.get_type_hints(kind, include_extras=True)
    documented = _descriptions(kind)
    default = kind()
    return [
        Key(section, f.name, _words(hints[f.name]), files.to_toml_value(getattr(default, f.name)), documented[f.name])
        for f in dataclasses.fields(kind)
        if not dataclasses.is_dataclass(hints[f.name]) and f.name != "sections"
    ]


def _descriptions(kind: type) -> dict[str, str]:
    """Return field → the string below it in the source, which Python itself discards."""
    found = {}
    [definition] = ast.parse(inspect.getsource(kind)).body
    for field, text in itertools.pairwise(definition.body):  # type: ignore[attr-defined]
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.split())
    return found


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kind, rule = _words(arguments[0]), str(arguments[1])
        return rule if isinstance(arguments[1], Matching) else f"{kind}, {rule.removeprefix('a list of ')}"
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        return f"list (each {_words(arguments[0])})"
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(hint, "table")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
