"""Reader of episodes that other programs wrote: JSON lines in a lenient form, checked key by key.

    {"task": "door-3", "success": true, "steps": [
        {"observation": "You see a key.", "actions": ["take", "leave"], "action": "take", "reward": 0.5,
         "reflection": "The key opens the door. Next: take."}]}

Values that the environment knows may be left out if the episode is replayed in it (`teach.replayed`).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reflectrl.core.episodes import ForeignEpisode, ForeignStep, as_foreign, from_line
from reflectrl.core.episodes.schema import NAMES, refuse_constant
from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import Observation, Reflection, Task

STEP_KEYS = ("observation", "actions", "action", "reward", "events", "reflection", "mistake")
EPISODE_KEYS = ("task", "steps", "success", "truncated", "seed", "player")
TASK_KEYS = ("id", "env", "payload", "split", "stage")


def read_foreign(path: Path) -> Iterator[tuple[int, ForeignEpisode, set[str]]]:
    """Yield the episodes of a file of JSON lines, each with its line number and its unused keys.

    Lines of reflectrl's own logs are read as well. Empty lines are skipped.

    Raises:
        UserError: the file cannot be read, or a line has an error. The message names file, line, step and key.
    """
    for line_number, (episode, unused) in read_json_lines(path, foreign_line, skip_blank=True):
        yield line_number, episode, unused


def foreign_line(line: str) -> tuple[ForeignEpisode, set[str]]:
    """Return the episode of a line, and the names of its unused keys.

    Raises:
        ValueError: describes the error in a few words.
    """
    try:
        data = parse_json(line, refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from error
    _require(dict, "an episode", data)
    if "schema" in data:
        return as_foreign(from_line(line)), set()
    unread = _unread(data, EPISODE_KEYS)
    steps = []
    for i, step in enumerate(_value(data, "steps", list, required=True), start=1):
        try:
            steps.append(_step(_require(dict, "a step", step), unread, str(data.get("player", "human"))))
        except ValueError as error:
            raise ValueError(f"step {i}: {error}") from error
    if not steps:
        raise ValueError("'steps' is empty")
    episode = ForeignEpisode(
        _task(data),
        tuple(steps),
        _value(data, "success", bool),
        _value(data, "truncated", bool),
        _seed(_value(data, "seed", int)),
        _value(data, "player", str) or "human",
    )
    return episode, unread


def _step(data: dict[str, Any], unread: set[str], player: str) -> ForeignStep:
    unread |= _unread(data, STEP_KEYS)
    action, actions = data.get("action"), _texts(data, "actions")
    if isinstance(action, bool) or not isinstance(action, int | str):
        raise ValueError(f"'action' must be an index or a text, not {_shown(action)}")
    if actions is not None:
        _require_among(action, actions)
    observation = data.get("observation")
    if isinstance(observation, Mapping):
        unread |= _unread(dict(observation), ("history", "state"))
        history, state = (_value(dict(observation), name, str) or "" for name in ("history", "state"))
        observation = Observation(history, state, actions or ())
    elif observation is not None:
        _utf8("observation", _require(str, "'observation'", observation))
    reward, reflection = _value(data, "reward", float), _value(data, "reflection", str)
    turns = (Reflection(player, reflection),) if reflection else ()
    events, mistake = _texts(data, "events"), _value(data, "mistake", bool) or False
    return ForeignStep(action, observation, actions, reward, events, turns, mistake)


def _task(data: dict[str, Any]) -> Task | str:
    task = data.get("task")
    if isinstance(task, str):
        return _utf8("task", task)
    if not isinstance(task, Mapping):
        raise ValueError(f"'task' must be the id of a task or an object, not {_shown(task)}")
    fields = dict(task)
    unknown_keys = sorted(_unread(fields, TASK_KEYS))
    if unknown_keys:
        raise ValueError(f"task: unknown key {unknown_keys[0]!r}{suggestion(unknown_keys[0], TASK_KEYS)}")
    names = {name: value for name in TASK_KEYS if (value := _value(fields, name, dict if name == "payload" else str))}
    if not names.get("id"):
        raise ValueError("task: 'id' is missing")
    return Task(**{"env": "", **names})


def _require_among(action: str | int, actions: tuple[str, ...]) -> None:
    if len(set(actions)) < len(actions):
        raise ValueError("'actions' lists an action twice")
    if isinstance(action, int) and not 0 <= action < len(actions):
        raise ValueError(f"'action' is {action}, and there are actions 0 to {len(actions) - 1}")
    if isinstance(action, str) and action not in actions:
        raise ValueError(f"'action' {action!r:.60} is not among 'actions'")


def _unread(data: dict[str, Any], known_keys: tuple[str, ...]) -> set[str]:
    """Return keys that are not read. A key that is almost spelled like a known one is an error."""
    unread = set(data) - set(known_keys)
    for key in sorted(unread):
        if difflib.get_close_matches(key, known_keys, n=1, cutoff=0.8):
            raise ValueError(f"unknown key {key!r}{suggestion(key, known_keys)}")
    return unread


def _value(data: dict[str, Any], key: str, kind: type, required: bool = False) -> Any:
    value = data.get(key)
    if value is None:
        if required:
            raise ValueError(f"{key!r} is missing")
        return None
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    value = _require(kind, repr(key), value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key!r} must be a finite number")
    return _utf8(key, value) if isinstance(value, str) else value


def _texts(data: dict[str, Any], key: str) -> tuple[str, ...] | None:
    values = _value(data, key, list)
    return None if values is None else tuple(_utf8(key, _require(str, f"{key!r}: an entry", entry)) for entry in values)


def _seed(seed: int | None) -> int | None:
    if seed is not None and seed < 0:
        raise ValueError(f"'seed' must not be negative: {seed}")
    return seed


def _require(kind: type, what: str, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{what} must be {NAMES[kind]}, not {_shown(value)}")
    return value


def _utf8(what: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what!r} is text that UTF-8 cannot hold") from error
    return text


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60}"
