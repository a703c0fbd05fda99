"""Conversion of plain values (TOML, command-line words) to dataclasses and arguments. Error messages name the key."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import inspect
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from reflectrl.core.plugins import one_line, suggestion
from reflectrl.core.types import UserError

T = TypeVar("T")


RENAMED = {
    "rl.passes": "rl.update_epochs",
    "offline.wish": "offline.target_return",
    "play.drafts": "play.speculative",
    "play.memory": "play.result_cache",
    "play.cache_mib": "play.kv_cache_mib",
    "text.learn_sampling": "rl.eval_sampling",
    "text.eval_sampling": "rl.eval_sampling",
    "offline.polyak": "offline.target_rate",
    ("rl.curriculum", "thirds"): "equal",
}
"""Old names of keys, and of values (as pairs of key and value). They are refused with a message that gives the new
name."""
REMOVED: dict[str, Any] = {"model.shard": False, "text.eval_sampling": "greedy", "offline.polyak": 0.03}
"""Keys that no longer exist, with their old defaults. Run folders and exported agents of earlier versions hold them, so
the old default is ignored. Any other value is refused as an unknown or renamed key."""
CHECKED = (bool, int, float, str)
"""Parameter types of plug-ins that are checked, besides `Literal` and tuples. Other types accept any value."""


class Word(str):
    """A value typed on the command line: text that may stand for a number, true or false, or a list.

    A string from a TOML file is not a `Word`: there, `"1"` is always text.
    """


class FreeSection(dict[str, Any]):
    """A section with arbitrary keys, such as [rewards]: names of plug-ins, each with a number or arguments.

    Attributes:
        tables: type of the values, if each is a table of known keys. None if keys and values are free: they may then
            name plug-ins and other things that need trust in a file.
    """

    tables: type | None = None


def from_dict(kind: type[T], data: Mapping[str, Any], where: str, prefix: str = "") -> T:
    """Build a dataclass from plain values; a `Word` is read as the type of its field.

    Args:
        kind: a dataclass whose fields have the types that recipes use. If it has a method `further_sections()` (name →
            type), those names are keys too, and their values end up in its field `sections`. If it has a method
            `completed(data)`, that adds values whose defaults depend on others.
        data: the values by field name; fields that are left out keep their defaults.
        where: source of the values (a file's name), for messages.
        prefix: the dotted path of this section, for messages.

    Raises:
        UserError: names the file, the dotted key, and the nearest known key, the expected type or the range.
    """
    extra_sections: dict[str, type] = getattr(kind, "further_sections", dict)()
    types = typing.get_type_hints(kind, include_extras=True)
    fields = [field.name for field in dataclasses.fields(typing.cast(Any, kind)) if field.name != "sections"]
    hints = {name: types[name] for name in fields} | extra_sections
    data = typing.cast(Any, kind).completed(data) if hasattr(kind, "completed") else data
    values: dict[str, Any] = {}
    for key, value in without_removed(data, prefix).items():
        if key not in hints:
            advice = _new_name(prefix + key) or suggestion(key, hints)
            raise UserError(f"{where}: unknown key {prefix + key!r}{advice}")
        values[key] = convert(hints[key], value, where, prefix + key)
    if extra_sections:
        values["sections"] = {name: values.pop(name, None) or section() for name, section in extra_sections.items()}
    built = kind(**values)
    problem = built.problem() if hasattr(built, "problem") else None
    if problem:
        raise UserError(f"{where}: {f'[{prefix[:-1]}] ' if prefix else ''}{problem}")
    return built


def without_removed(section: Any, prefix: str) -> Any:
    """Return a section without keys that no longer exist, if they have their old defaults; other values unchanged."""
    if not isinstance(section, Mapping):
        return section
    removed = {key.removeprefix(prefix): default for key, default in REMOVED.items() if key.startswith(prefix)}
    dropped = [key for key, default in removed.items() if section.get(key) == default]
    return {key: value for key, value in section.items() if key not in dropped} if dropped else section


def convert(hint: Any, value: Any, where: str, key: str) -> Any:
    """Convert `value` to the type of a field or a parameter.

    Known types: bool, int, float, str, Literal, tuple[X, ...], Mapping, dataclasses, Annotated with rules, and another
    type or a Literal (in this order).

    Raises:
        UserError: the value has another type, or breaks a rule.
    """
    if typing.get_origin(hint) is Annotated:
        inner, *rules = typing.get_args(hint)
        value = convert(inner, value, where, key)
        for rule in rules:
            if not rule.holds(value):
                raise UserError(f"{where}: {key!r} is {_show(value)}; it must be {rule}")
        return value
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), _section(value, where, key), where, key + ".")
    if inspect.isclass(hint) and issubclass(hint, FreeSection):
        return hint(convert(Mapping[str, Any], value, where, key))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _one_of(arguments, value, where, key)
    if origin in (typing.Union, types.UnionType):
        other, words = arguments
        return str(value) if value in typing.get_args(words) else convert(other, value, where, key)
    if origin is tuple:
        return tuple(
            convert(arguments[0], item, where, f"{key}[{i}]") for i, item in enumerate(_items(value, where, key))
        )
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return {name: _plain(item, where, f"{key}.{name}") for name, item in _section(value, where, key).items()}
    return _scalar(hint, value, where, key)


def _new_name(old: Any) -> str:
    return f"; it is called {RENAMED[old]!r} now" if old in RENAMED else ""


def _section(value: Any, where: str, key: str) -> Mapping[str, Any]:
    parsed = read_value(value)
    if not isinstance(parsed, Mapping):
        raise UserError(f"{where}: {key!r} is a section with keys of its own, not {_show(value)}")
    return parsed


def _one_of(allowed: tuple[Any, ...], value: Any, where: str, key: str) -> Any:
    if isinstance(value, str) and value in allowed:
        return str(value)
    near = difflib.get_close_matches(str(value)[:200], map(str, allowed), n=1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    advice = _new_name((key, str(value))) or f"; it must be one of {', '.join(map(str, allowed))}{meant}"
    raise UserError(f"{where}: {key!r} is {_show(value)}{advice}")


def _items(value: Any, where: str, key: str) -> list[Any]:
    """Return a list. A Word may be written "[1, 2]", "1,2" or "1"; "0..3" means the whole numbers from 0 to 3."""
    if isinstance(value, Word):
        parsed = read_word(value)
        inner = value.strip().removeprefix("[").removesuffix("]")
        words = [item.strip() for item in inner.split(",") if item.strip()]
        value = parsed if isinstance(parsed, list) else [Word(word) for item in words for word in _counted(item)]
    if not isinstance(value, list | tuple):
        raise UserError(f"{where}: {key!r} must be a list, not {_show(value)}")
    return list(value)


def _counted(item: str) -> list[str]:
    """Return ["0", "1", "2", "3"] for "0..3"; any other item is returned as it is."""
    match = re.fullmatch(r"(\d{1,6})\.\.(\d{1,6})", item)
    return [str(n) for n in range(int(match[1]), int(match[2]) + 1)] if match else [item]


def _scalar(hint: Any, value: Any, where: str, key: str) -> Any:
    if hint is str:
        if not isinstance(value, str):
            raise UserError(f"{where}: {key!r} must be text, not {_show(value)}")
        if any("\ud800" <= letter <= "\udfff" for letter in value):  # typed bytes that are not UTF-8
            raise UserError(f"{where}: {key!r} is {_show(value)}; it must be text in UTF-8")
        return str(value)
    parsed = read_value(value)
    if hint is float and type(parsed) is int:
        try:
            parsed = float(parsed)
        except OverflowError as error:
            raise UserError(f"{where}: {key!r} is too large a number") from error
    if type(parsed) is not hint:
        expected = {int: "a whole number", float: "a number", bool: "true or false"}[hint]
        raise UserError(f"{where}: {key!r} must be {expected}, not {_show(value)}")
    return parsed


def _plain(value: Any, where: str, key: str) -> Any:
    """Return a free value: text, number, true or false, list or table (the types that TOML and JSON share)."""
    if isinstance(value, Word):
        return read_word(value)
    if isinstance(value, Mapping):
        return {name: _plain(item, where, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where, f"{key}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, str | bool | int | float):
        raise UserError(f"{where}: {key!r} must be text, a number, true or false, a list or a table, not {value}")
    return value


def read_value(value: Any) -> Any:
    """Return the value that a command-line word stands for; anything else unchanged."""
    return read_word(value) if isinstance(value, Word) else value


def read_word(word: Word) -> Any:
    """Return the TOML or JSON value of a command-line word; the text itself if it is neither."""
    if word.lstrip().startswith("{"):  # a table: TOML writes it with "=", JSON with ":" and quoted names
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            pass
    if any(mark in word for mark in "\r\n#"):
        return str(word)
    try:
        value = tomllib.loads(f"x = {word}")["x"]
    except (ValueError, RecursionError):
        return str(word)
    return str(word) if isinstance(value, datetime.date | datetime.time) else value


def _show(value: Any) -> str:
    text = repr(str(value) if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def checked(made: Any, arguments: Mapping[str, Any], what: str, section: str) -> dict[str, Any]:
    """Check arguments against the signature of `made`, and convert them to the types it asks for.

    Args:
        made: a class, or anything else that can be called.
        what: description of it ("environment 'taxi'"), for messages.
        section: section of a recipe with the arguments ("env"), for messages.

    Raises:
        UserError: an argument is unknown, has the wrong type, or is missing.
    """
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} is not a class with known arguments: {one_line(error)}") from error
    kinds = {parameter.kind for parameter in parameters.values()}
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    accepted = {key: parameter for key, parameter in parameters.items() if parameter.kind in named}
    for key in arguments:
        if key not in accepted and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise UserError(f"{what} takes no {key!r}{suggestion(key, accepted)}")
    for key, parameter in accepted.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UserError(f"{what} needs {key!r}; set {section}.{key}")
    try:
        hints = typing.get_type_hints(made.__init__ if inspect.isclass(made) else made)
    except Exception:  # annotations of a plug-in that do not evaluate are not checked
        hints = {}
    return {key: _typed(hints.get(key), value, what, key, section) for key, value in arguments.items()}


def _is_table(hint: Any) -> bool:
    """Tell whether a parameter takes only a mapping, or a mapping or None."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [kind for kind in (typing.get_args(hint) if union else [hint]) if kind is not types.NoneType]
    classes = [typing.get_origin(kind) or kind for kind in kinds]
    return bool(classes) and all(inspect.isclass(cls) and issubclass(cls, Mapping) for cls in classes)


def _typed(hint: Any, value: Any, where: str, key: str, section: str) -> Any:
    if typing.get_origin(hint) is tuple and isinstance(value, str):
        value = Word(value)  # "heat,cool" on the command line, which has passed through a section of plain values
    if hint in CHECKED or typing.get_origin(hint) in (Literal, tuple):
        return convert(hint, value, where, key)
    if _is_table(hint) and value is not None:
        parsed = read_value(value)
        if not isinstance(parsed, Mapping):
            example = f"'{{\"name\": 1}}' on the command line, {section}.{key} = {{name = 1}} in a recipe"
            raise UserError(f"{where}: {key!r} is a table ({example}), not {_show(value)}")
    return convert(Mapping[str, Any], {key: value}, where, key)[key] if isinstance(value, Word) else value
