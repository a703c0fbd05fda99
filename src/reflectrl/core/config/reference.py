"""The reference of recipe keys, made from the dataclasses: `python -m reflectrl.core.config.reference`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import textwrap
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from reflectrl.core.config import files, recipe
from reflectrl.core.config.rules import Matching
from reflectrl.core.config.values import FreeSection

HEAD = """# Recipe keys

A recipe is a TOML file; `reflectrl run RECIPE` fills the folder `runs/NAME`. Every key has a default, so a recipe holds
only what it changes. Any key can be set for one run on the command line:
`reflectrl run taxi --rl.lr 1e-4 --seeds 0,1,2`. With `--dry-run`, it prints the whole recipe and runs nothing.
A key that names code, an address or a secret may need trust if a file sets it ([trust.md](trust.md)).

The page begins with the keys that matter most. `reflectrl list keys` and `reflectrl run --help` have the same order.

This page is made by `make docs` from the dataclasses in `src/reflectrl/core/config/`, and from those that wings bring.
"""

FIRST = "The keys that matter most"
TRADES = {
    "env": "Difficulty against time: its horizon, and its numbers of tasks, set the time of every stage.",
    "arms": "What is compared. Each arm is trained and evaluated; arms share the stages that they have in common.",
    "seeds": "Narrower intervals against time: each seed is a complete training.",
    "model.source": "Models from scratch learn a small world in minutes; pretrained ones know language and take hours.",
    "model.lora_rank": "Adapters need little memory and share one backbone. Training all weights (0) learns more, and "
    "keeps two models.",
    "teach.tasks": "More demonstrations make a better start, and leave less to RL. Set it low to see what RL is worth.",
    "sft.steps": "Time against fit. The best weights on validation rows are kept, so too many steps only take longer.",
    "rl.algorithm": "PPO learns several times from each batch; REINFORCE is simpler, and learns from it once.",
    "rl.updates": "Time against success: RL takes most of a run, and its time grows with updates times episodes.",
    "rl.episodes": "Steadier updates against fewer of them in the same time.",
    "rl.lr": "Speed against stability. Lower it if success rises and then falls.",
    "eval.episodes": "Narrower intervals against time; 0 plays all tasks of a split.",
    "processes": "Time against memory: each process holds models of its own.",
}
"""The keys that matter most, each with its trade-off. They come first in the reference and in the lists of keys."""


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
    all_keys = _keys_of(recipe.Recipe, "")
    hints = typing.get_type_hints(recipe.Recipe)
    hints = {field.name: hints[field.name] for field in dataclasses.fields(recipe.Recipe)}
    for name, kind in {**hints, **recipe.installed_sections()}.items():
        if dataclasses.is_dataclass(kind):
            all_keys += _keys_of(typing.cast(type, kind), name)
        elif inspect.isclass(kind) and issubclass(kind, FreeSection):
            all_keys.append(Key("", name, "table", "{}", inspect.getdoc(kind) or ""))
    return tuple(all_keys)


def groups() -> dict[str, list[str]]:
    """Return title → dotted keys, in the order of the reference: those that matter most, then all others by section."""
    sections: dict[str, list[str]] = {FIRST: list(TRADES)}
    for key in keys():
        if key.dotted not in TRADES:
            sections.setdefault(_title(key.section), []).append(key.dotted)
    return sections


def listed() -> list[Key]:
    """Return every key in the order of `groups`."""
    by_name = {key.dotted: key for key in keys()}
    return [by_name[dotted] for dotted in itertools.chain.from_iterable(groups().values())]


def help_text(width: int = 80) -> str:
    """Return what `reflectrl run --help` says about keys, in the order of `groups`."""
    lines = [f"{FIRST}, and their trade-offs (`reflectrl list keys` describes all keys):"]
    column = 2 + max(map(len, TRADES))
    for dotted, trade in TRADES.items():
        first, others = f"  --{dotted:{column}}", " " * (column + 4)
        lines += textwrap.wrap(trade, width, initial_indent=first, subsequent_indent=others)
    words = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    for title, names in groups().items():
        if title != FIRST:
            lines += ["", f"{title}:", *words.wrap(" ".join(names))]
    return "\n".join(lines)


def reference() -> str:
    """Return all keys as a Markdown page: those that matter most, then a table per section."""
    lines = [HEAD, f"## {FIRST}", "", "| key | trade-off |", "|---|---|"]
    lines += [f"| `{dotted}` | {_cell(trade)} |" for dotted, trade in TRADES.items()]
    lines.append("")
    for section in dict.fromkeys(key.section for key in keys()):
        lines += [f"## {_title(section)}", "", "| key | type | default | |", "|---|---|---|---|"]
        for key in keys():
            if key.section == section:
                cells = (f"`{key.name}`", key.type, f"`{key.default}`", key.description)
                lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return "\n".join(lines)


def _title(section: str) -> str:
    return f"[{section}]" if section else "At the top"


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
    descriptions = {}
    for field, text in itertools.pairwise(_classes_in(inspect.getfile(kind))[kind.__name__].body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                descriptions[name] = " ".join(words.split())
    return descriptions


@functools.cache
def _classes_in(file: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a source file by name. `inspect.getsource` would parse the file again for each of them."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        kind, rule = _words(arguments[0]), str(arguments[1])
        return rule if isinstance(arguments[1], Matching) else f"{kind}, {rule.removeprefix('a list of ')}"
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_words, arguments))
    if origin is tuple:
        return f"list (each {_words(arguments[0])})"
    return {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(hint, "table")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
