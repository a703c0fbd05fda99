"""Views: pure functions from episodes to training rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reflectrl.core.episodes.log import task_key
from reflectrl.core.prompts import Prompt, reflection_completion, reflector_prompt
from reflectrl.core.types import AuxiliaryQuestion, Episode, Observation, Step, Task, UserError, named_seed


@dataclass(frozen=True)
class ReflectionRow:
    """Training row of a reflector, which reads `prompt` and learns to write `completion`, then end-of-text."""

    prompt: Prompt
    completion: str


@dataclass(frozen=True)
class ChoiceRow:
    """Training row of a policy, which reads the observation and any reflection, and learns to choose `target`.

    Attributes:
        preferences: relative weight of each action, learned in place of the target by a policy that scores options.
        questions: further questions about the state, for a policy that scores options.
    """

    observation: Observation
    reflection: str | None
    target: int
    preferences: tuple[float, ...] = ()
    questions: tuple[AuxiliaryQuestion, ...] = ()


def _labelled(episodes: Iterable[Episode], negatives: bool) -> Iterator[Step]:
    labels = ("positive", "negative") if negatives else ("positive",)
    return (step for episode in episodes for step in episode.steps if step.label in labels)


def sft_reflection(episodes: Iterable[Episode], negatives: bool = True) -> list[ReflectionRow]:
    """Make rows (state → reflection) for the reflector, one per labelled step with a reflection."""
    steps = (step for step in _labelled(episodes, negatives) if step.reflection is not None)
    return [ReflectionRow(reflector_prompt(s.observation), reflection_completion(s.reflection or "")) for s in steps]


def sft_policy(episodes: Iterable[Episode], negatives: bool = True) -> list[ChoiceRow]:
    """Make rows (state and reflection → best action) for a policy that reads reflections."""
    steps = (step for step in _labelled(episodes, negatives) if step.reflection is not None)
    return [_choice_row(s, s.reflection, s.target) for s in steps if s.target is not None]


def drop_reflections(rows: Sequence[ChoiceRow], share: float, seed: int) -> list[ChoiceRow]:
    """Remove the reflection from about this share of rows, so that the policy also learns to read the state."""
    drops = np.random.default_rng(named_seed(seed, "dropped reflections")).random(len(rows)) < share
    return [replace(row, reflection=None) if drop else row for row, drop in zip(rows, drops, strict=True)]


def sft(episodes: Iterable[Episode], negatives: bool = True) -> list[ChoiceRow]:
    """Make rows (state → best action) for a policy that reads no reflections."""
    return [_choice_row(s, None, s.target) for s in _labelled(episodes, negatives) if s.target is not None]


def _choice_row(step: Step, reflection: str | None, target: int) -> ChoiceRow:
    return ChoiceRow(step.observation, reflection, target, step.preferences, step.questions)


def check_disjoint(training: Iterable[Episode], held_out: Iterable[Task]) -> None:
    """Raise UserError if a held-out task occurs in training data. Tasks are compared by payload, not only by id."""
    held_out_keys = {task_key(task) for task in held_out}
    for episode in training:
        if task_key(episode.task) in held_out_keys:
            raise UserError(f"task {episode.task.id!r} of the held-out splits occurs in the training episodes")
