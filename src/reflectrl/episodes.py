"""The episode log: one JSON line per episode, schema-versioned, validated on reading; and the views of it.

A view is a pure function from episodes to training rows.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reflectrl.prompts import Prompt, reflection_completion, reflector_prompt
from reflectrl.types import Episode, Observation, Sampling, Step, Task, Turn, UserError

SCHEMA = 1


def to_line(episode: Episode) -> str:
    """An episode as one JSON line without the line break."""
    return json.dumps({"schema": SCHEMA, **vars(episode)}, ensure_ascii=False, separators=(",", ":"), default=vars)


def from_line(line: str) -> Episode:
    """Read one line back.

    Raises:
        ValueError: what is wrong with the line, in a few words.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or data.pop("schema", None) != SCHEMA:
        raise ValueError(f"not an episode of schema {SCHEMA}")
    try:
        steps = tuple(_step(step) for step in data.pop("steps"))
        episode = Episode(task=Task(**data.pop("task")), steps=steps, **data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"malformed episode: {error}") from error
    _validate(episode)
    return episode


def _step(data: dict[str, Any]) -> Step:
    observation = data.pop("observation")
    observation["actions"] = tuple(observation["actions"])
    turns = tuple(_turn(turn) for turn in data.pop("turns"))
    data["events"] = tuple(data["events"])
    return Step(observation=Observation(**observation), turns=turns, **data)


def _turn(data: dict[str, Any]) -> Turn:
    sampling = data.pop("sampling")
    tuples = {key: tuple(data.pop(key)) for key in ("order", "probs", "token_ids", "logprobs")}
    return Turn(**data, **tuples, sampling=None if sampling is None else Sampling(**sampling))


def _validate(episode: Episode) -> None:
    if not isinstance(episode.success, bool) or not isinstance(episode.seed, int):
        raise ValueError("success must be true or false and seed a whole number")
    for i, step in enumerate(episode.steps):
        legal = range(len(step.observation.actions))
        if step.action not in legal or (step.target is not None and step.target not in legal):
            raise ValueError(f"step {i}: the action is not among the {len(legal)} listed")
        if not isinstance(step.reward, int | float):
            raise ValueError(f"step {i}: the reward is not a number")


def read_episodes(path: Path) -> Iterator[Episode]:
    """Episodes of a log, in order.

    Raises:
        UserError: the file cannot be read, or a line is corrupt (named by file and line number).
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield _read_line(path, number, line)
    except OSError as error:
        raise UserError(f"episodes {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"episodes {path}: not UTF-8 text: {error.reason}") from error


def _read_line(path: Path, number: int, line: str) -> Episode:
    if not line.endswith("\n"):
        raise UserError(f"{path}:{number}: half-written line (remove it to go on)")
    try:
        return from_line(line)
    except ValueError as error:
        raise UserError(f"{path}:{number}: corrupt episode: {error}") from error


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
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            cut = file.read(end - start).rfind(b"\n")
            if cut >= 0:
                file.truncate(start + cut + 1)
                return
            end = start
        file.truncate(0)


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
