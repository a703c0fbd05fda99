"""The page of verbs, made from their dataclasses: `python docs/make_verbs.py > docs/verbs.md`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import textwrap
import typing
from typing import Annotated, Any, Literal

import tyro

from reflectrl.cli.verbs import OWN, Verbs
from reflectrl.core.plugins import names, resolve

HEAD = """# Verbs

`reflectrl VERB ...` does one thing and says in one line what is wrong, if something is. `reflectrl VERB --help` prints
what stands here; `reflectrl --version` prints the version. This page is made from the code by `make docs`.
"""


def page() -> str:
    """Every verb with its options: the core's, those of the rooms beside it, the wings', the benchmarks of `data`."""
    verbs = Verbs()
    rooms = {verb: kind.__module__.split(".")[1] for verb, kind in verbs.items()}
    benchmarks = {f"data {name}": resolve("benchmarks", name) for name in names("benchmarks")}
    own = [verb for verb, room in rooms.items() if room == "cli"]
    wings = [verb for verb, room in rooms.items() if room == "wings"]
    beside = [verb for verb in verbs if verb not in (*own, *wings)]
    sections = [HEAD]
    for title, group in (("the core", own), ("the rooms beside it", beside), ("the wings", wings)):
        sections += [f"## Of {title}", *(_section(verb, verbs[verb]) for verb in group)]
    sections += ["## Data", *(_section(verb, kind) for verb, kind in benchmarks.items())]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _section(verb: str, kind: type) -> str:
    about = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    hints, described = typing.get_type_hints(kind, include_extras=True), _descriptions(kind)
    if kind.__base__ in OWN.values() and not kind.__annotations__.keys() - {"until"}:
        return f"### {verb}\n\n{about} Its options are those of [run](#run)."
    rows = [_row(field, hints[field.name], described.get(field.name, "")) for field in dataclasses.fields(kind)]
    table = ["| option | default | |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"### {verb}", "", about, "", *table])


def _row(field: dataclasses.Field[Any], hint: Any, description: str) -> str:
    kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    found = [note for note in notes if getattr(note, "metavar", None) or getattr(note, "name", None)]
    option = next((note.name for note in found if note.name), field.name.strip("_").replace("_", "-"))
    value = next((note.metavar for note in found if note.metavar), _value(kind, option))
    shown = value if tyro.conf.Positional in notes else f"--{option} {value}".strip()
    return f"| `{shown}` | {_default(field)} | {description} |".replace("  ", " ")


def _value(kind: Any, option: str) -> str:
    if kind is bool:
        return ""
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(typing.get_args(kind)) + "}"
    return option.upper()


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default in (None, "", ()) or field.default is False:
        return ""
    values = field.default if isinstance(field.default, tuple) else (field.default,)
    return f"`{' '.join(str(value) for value in values)}`"


def _descriptions(kind: type) -> dict[str, str]:
    """The string below each field, those of base classes included, which Python itself throws away."""
    found: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, text in itertools.pairwise(definition.body):  # type: ignore[attr-defined]
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = " ".join(words.split()).replace("|", "\\|")
    return found


if __name__ == "__main__":
    sys.stdout.write(page())
