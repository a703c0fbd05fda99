"""The episode log: one JSON line per episode, schema-versioned, validated on reading; and the views of it.

A view is a pure function from episodes to training rows.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from reflectrl.models.labels import candidates
from reflectrl.plugins import suggestion
from reflectrl.prompts import Prompt, policy_prompt, reflection_completion, reflector_prompt
from reflectrl.types import Episode, Observation, Step, Task, UserError

SCHEMA = 1


def to_line(episode: Episode) -> str:
    """An episode as one JSON line without the line break.

    Raises:
        ValueError: a number is not finite; JSON has no word for it.
    """
    data = {"schema": SCHEMA, **vars(episode)}
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=vars)


def from_line(line: str) -> Episode:
    """Read one line back. Keys with a default may be missing; unknown ones may not be there.

    Raises:
        ValueError: what is wrong with the line, in a few words.
    """
    try:
        data = json.loads(line)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise ValueError(f"not an episode of schema {SCHEMA}")
    episode: Episode = _reader(Episode)(data)
    for i, step in enumerate(episode.steps):
        if problem := _problem(step):
            raise ValueError(f"steps: {i}: {problem}")
    return episode


def _problem(step: Step) -> str | None:
    """What does not fit together in a step, or None."""
    legal = range(len(step.observation.actions))
    chosen = [step.action, step.target, *(turn.choice for turn in step.turns)]
    if any(action is not None and action not in legal for action in chosen):
        return f"an action is not among the {len(legal)} listed"
    if any(turn.order and sorted(turn.order) != list(legal) for turn in step.turns):
        return f"an order does not list each of the {len(legal)} actions once"
    if any(turn.probs and len(turn.probs) != len(legal) for turn in step.turns):
        return f"there is not one probability for each of the {len(legal)} actions"
    return None


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """What turns a JSON value into a value of that type, or raises ValueError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return partial(_read_object, hint, {name: _reader(h) for name, h in typing.get_type_hints(hint).items()})
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


def read_episodes(path: Path) -> Iterator[Episode]:
    """Episodes of a log, in order.

    Raises:
        UserError: the file cannot be read, or a line is corrupt (named by file and line number).
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield _read_line(path, number, line)
    except OSError as error:
        raise UserError(f"episodes {path}: {error.strerror}") from error


def _read_line(path: Path, number: int, line: bytes) -> Episode:
    if not line.endswith(b"\n"):
        raise UserError(f"{path}:{number}: half-written line (remove it to go on)")
    try:
        return from_line(line.decode("utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one
        raise UserError(f"{path}:{number}: corrupt episode: {error}") from error


def merge(*logs: Iterable[Episode]) -> Iterator[Episode]:
    """The episodes of several logs, in order; of those with the same instance, seed and arm only the first."""
    seen = set()
    for episode in chain(*logs):
        key = (task_key(episode.task), episode.seed, str(episode.provenance.get("arm")))
        if key not in seen:
            seen.add(key)
            yield episode


class EpisodeLog:
    """An append-only log that survives a kill: at most the line being written is lost, and it is dropped on reopening.

    Use as a context manager; every `append` is on the disk's side of the process once it returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        drop_half_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, episode: Episode) -> None:
        self._file.write(to_line(episode) + "\n")
        self._file.flush()

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def drop_half_line(path: Path) -> None:
    """Cut off what a killed writer left after the last line break. A missing file is fine."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        if whole < file.tell():
            file.truncate(whole)


# ---- views ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReflectionRow:
    """An SFT row of the reflector: it reads `prompt` and writes `completion`, then end-of-text."""

    prompt: Prompt
    completion: str


@dataclasses.dataclass(frozen=True)
class ChoiceRow:
    """An SFT row of the policy: after the observation and (unless None) the reflection it chooses action `target`."""

    observation: Observation
    reflection: str | None
    target: int


def _lessons(episodes: Iterable[Episode], negatives: bool) -> Iterator[Step]:
    wanted = ("positive", "negative") if negatives else ("positive",)
    return (step for episode in episodes for step in episode.steps if step.lesson in wanted)


def sft_reflection(episodes: Iterable[Episode], negatives: bool = True) -> list[ReflectionRow]:
    """State → reflection, for every taught step that has a reflection."""
    steps = (step for step in _lessons(episodes, negatives) if step.reflection is not None)
    return [ReflectionRow(reflector_prompt(s.observation), reflection_completion(s.reflection or "")) for s in steps]


def sft_policy(episodes: Iterable[Episode], negatives: bool = True) -> list[ChoiceRow]:
    """State and reflection → best action."""
    steps = (step for step in _lessons(episodes, negatives) if step.reflection is not None)
    return [ChoiceRow(s.observation, s.reflection, s.target) for s in steps if s.target is not None]


def sft(episodes: Iterable[Episode], negatives: bool = True) -> list[ChoiceRow]:
    """State → best action: the policy that plays without reflections."""
    return [ChoiceRow(s.observation, None, s.target) for s in _lessons(episodes, negatives) if s.target is not None]


def export(rows: Iterable[ReflectionRow | ChoiceRow], labels: Sequence[str] = ()) -> Iterator[str]:
    """Rows as JSON lines with the columns "prompt" and "completion", the form that TRL and its like train on.

    Args:
        labels: choice labels, for `ChoiceRow`s; by default "1", "2", ... Those of a model: `Policy.labels(n).texts`.
    """
    labels = labels or list(candidates())
    for row in rows:
        if isinstance(row, ReflectionRow):
            prompt, completion = row.prompt, row.completion
        else:
            prompt, completion = policy_prompt(row.observation, row.reflection, labels), " " + labels[row.target]
        yield json.dumps({"prompt": prompt.history + prompt.rest, "completion": completion}, ensure_ascii=False)


def check_disjoint(training: Iterable[Episode], held_out: Iterable[Task]) -> None:
    """UserError if a held-out task occurs in training data (compared by payload, not only by id)."""
    held = {task_key(task) for task in held_out}
    for episode in training:
        if task_key(episode.task) in held:
            raise UserError(f"task {episode.task.id!r} of the held-out splits occurs in the training episodes")


def task_key(task: Task) -> str:
    """What makes two tasks the same instance, whatever they are called: environment, stage and payload."""
    payload: Mapping[str, Any] = task.payload
    return json.dumps([task.env, task.stage, payload], sort_keys=True, default=str)
