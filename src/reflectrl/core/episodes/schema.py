"""Episodes as lines of JSON with a schema version. Reading a line checks everything against the types."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from reflectrl.core.digests import CHECKSUM, seal, unseal
from reflectrl.core.json_lines import parse_json
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import Choice, Episode, Reflection, Step, Turn

SCHEMA = 2
"""Version of the schema. Version 2 renamed a step's `lesson` to `label`. Lines of version 1 can still be read."""

UNSAVED = ("prompt_ids", "cut_off")
"""Attributes that stay in memory. Another model would read another prompt, so a file must not fix it. The point at
which an episode was cut off serves a critic, which learns from fresh episodes."""
LEFT_OUT = ("carried", "support", "top_k", "ended")
"""Attributes that are written only if they are neither empty nor 0, so that other lines are the same as in earlier
versions."""


def to_line(episode: Episode) -> str:
    """Write an episode as one JSON line, without the line break. The last key is a checksum of everything before.

    Raises:
        ValueError: a number is not finite, so JSON cannot express it.
    """
    data = {"schema": SCHEMA, **_saved(episode)}
    return seal(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_saved))


def to_lines(episodes: Iterable[Episode]) -> str:
    """Write episodes as the content of a file, one line each.

    Raises:
        ValueError: a number is not finite.
    """
    return "".join(f"{to_line(episode)}\n" for episode in episodes)


def _saved(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that are written."""
    return {k: item for k, item in vars(value).items() if k not in UNSAVED and (item or k not in LEFT_OUT)}


def from_line(line: str) -> Episode:
    """Read an episode from a line. Keys with a default and the checksum may be missing. Unknown keys are errors.

    Raises:
        ValueError: the line is invalid. The message says why in a few words.
    """
    data = parse_json(unseal(line.rstrip("\r\n")), refuse_constant)
    schema = data.pop("schema", None) if isinstance(data, dict) else None
    if schema not in (1, SCHEMA):
        raise ValueError(f"not an episode of schema {SCHEMA}")
    if schema == 1 and isinstance(data.get("steps"), list):
        for step in data["steps"]:
            if isinstance(step, dict) and "lesson" in step:
                step["label"] = step.pop("lesson")
    data.pop(CHECKSUM, None)  # still there if another program has reformatted the line, so that it no longer applies
    episode: Episode = _reader(Episode)(data)
    for i, step in enumerate(episode.steps):
        if problem := _problem(step):
            raise ValueError(f"steps: {i}: {problem}")
    return episode


def refuse_constant(word: str) -> None:
    """Refuse NaN and infinities, which Python would accept. For `json.loads(parse_constant=...)`."""
    raise ValueError(f"{word} is not a valid JSON number")


def _problem(step: Step) -> str | None:
    """Return an inconsistency in a step, or None."""
    legal = range(len(step.observation.actions))
    actions = [step.action, step.target, *(turn.choice for turn in step.turns)]
    if any(action is not None and action not in legal for action in actions):
        return f"an action is not among the {len(legal)} listed"
    if step.preferences and len(step.preferences) != len(legal):
        return f"there is not one preference for each of the {len(legal)} actions"
    if any(question.correct not in range(len(question.answers)) for question in step.questions):
        return "the correct answer of a question is not among its answers"
    if any(turn.order and sorted(turn.order) != list(legal) for turn in step.turns):
        return f"an order does not list each of the {len(legal)} actions once"
    if any(turn.support and not {turn.choice} <= set(turn.support) <= set(legal) for turn in step.turns):
        return f"the support is not a part of the {len(legal)} listed actions, with the one that was chosen"
    if any(turn.probs and len(turn.probs) != len(legal) for turn in step.turns):
        return f"there is not one probability for each of the {len(legal)} actions"
    return None


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts a JSON value to a value of this type, or raises ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return partial(_read_object, hint, {name: _reader(h) for name, h in hints.items() if name not in UNSAVED})
    if origin is tuple:
        return partial(_read_list, _reader(arguments[0]))
    if origin in (typing.Union, types.UnionType):  # X | None, or Literal[...] | None
        inner = _reader(next(a for a in arguments if a is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is typing.Literal:
        return partial(_read_word, arguments)
    return partial(_read_plain, dict if origin is not None else hint)


def _read_object(kind: type, readers: dict[str, Callable[[Any], Any]], value: Any) -> Any:
    values = {}
    for key, item in _read_plain(dict, value).items():
        if key not in readers:
            raise ValueError(f"unknown key {key!r}{suggestion(key, readers)}")
        try:
            values[key] = readers[key](item)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    if kind is Turn:  # both kinds of turns have one form in a log
        kind = Reflection if values.get("choice") is None else Choice
    try:
        return kind(**values)
    except TypeError as error:  # "missing 1 required positional argument: 'id'"
        raise ValueError(str(error).partition("() ")[2]) from error


def _read_list(read: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    items = []
    for i, item in enumerate(_read_plain(list, value)):
        try:
            items.append(read(item))
        except ValueError as error:
            raise ValueError(f"{i}: {error}") from error
    return tuple(items)


def _read_word(words: tuple[str, ...], value: Any) -> Any:
    if value not in words:
        raise ValueError(f"must be one of {', '.join(words)}, not {value!r:.60}")
    return value


def _read_plain(kind: type, value: Any) -> Any:
    if kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is float or type(value) is not kind:
        raise ValueError(f"must be {NAMES[kind]}, not {value!r:.60}")
    return value


NAMES = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}
NAMES |= {list: "a list", dict: "an object"}
