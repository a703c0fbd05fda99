"""What the hooks of an environment have to give, checked at every reset and step.

A text that UTF-8 cannot hold, a reward that is a word or an event that is a number would be written into a log that
cannot be read any more, or end in an exception of something that knows neither the environment nor the task. Each
function here says what is wrong in a few words, or None; they cost about a microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from reflectrl.types import Task, UserError


class PromiseError(UserError):
    """A hook of an environment gave what it must not give; the message names environment, task and promise."""

    promise = ""
    """The promise alone, and the task."""


def require_kept(env: object, task: object, problem: str | None) -> None:
    """Raise `PromiseError` if there is a problem."""
    if problem is not None:
        name = task.id if isinstance(task, Task) else task
        error = PromiseError(f"environment {type(env).__name__} breaks a promise on task {name!r:.200}: {problem}")
        error.promise = f"{problem} (task {name!r:.200})"
        raise error


def problem_of_task(task: object) -> str | None:
    """What is wrong with a task that is to be played."""
    if not isinstance(task, Task):
        return f"tasks are Task objects, not {type(task).__name__}"
    return _first((f"a task's {name}", getattr(task, name)) for name in ("id", "env", "split", "stage"))


def problem_of_text(what: str, text: object) -> str | None:
    """What is wrong with something that is to be text."""
    if not isinstance(text, str):
        return f"{what} is text, not {text!r:.60}"
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"{what} is text that UTF-8 can hold, without {text[error.start]!r}"
    return None


def problem_of_observation(history: Any, state: Any, actions: Any, over: bool) -> str | None:
    """What is wrong with what a player is to see; once the episode is over, no action needs to be legal."""
    if not _is_list(actions):
        return f"legal actions are a list of texts, not {actions!r:.60}"
    if not actions and not over:
        return "legal actions are not empty before the end"
    try:
        joined = "\n".join(actions)
    except TypeError:
        odd = next(action for action in actions if not isinstance(action, str))
        return f"an action is text, not {odd!r:.60}"
    if type(history) is type(state) is str and history.isascii() and state.isascii() and joined.isascii():
        return None  # nearly always, and quick
    return _first((("history", history), ("state", state), ("an action", joined)))


def problem_of_outcome(reward: object, terminated: object, success: object, events: Any) -> str | None:
    """What is wrong with what an action led to."""
    if not is_finite(reward):
        return f"rewards are finite numbers, not {reward!r:.60}"
    if not _is_flag(terminated):
        return f"terminated is True or False, not {terminated!r:.60}"
    if not _is_flag(success):
        return f"success is True or False, not {success!r:.60}"
    if not isinstance(events, (list, tuple)):
        return f"events are a tuple of texts, not {events!r:.60}"
    return _first(("an event", event) for event in events) if events else None


def problem_of_advice(hook: str, index: Any, actions: int) -> str | None:
    """What is wrong with what a teacher says: the index of one of so many legal actions."""
    if isinstance(index, Integral) and not isinstance(index, bool) and 0 <= int(index) < actions:
        return None
    return f"{hook} gives the index of a legal action, not {index!r:.60} of {actions}"


def is_finite(number: object) -> bool:
    """Whether this is a real number, of Python or numpy, that a float can hold."""
    if type(number) is float:
        return math.isfinite(number)
    if isinstance(number, bool) or not isinstance(number, Real):
        return False
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _is_flag(found: object) -> bool:
    return found is True or found is False or isinstance(found, np.bool_)


def _is_list(found: object) -> bool:
    return isinstance(found, (list, tuple)) or (isinstance(found, Sequence) and not isinstance(found, (str, bytes)))


def _first(texts: Iterable[tuple[str, object]]) -> str | None:
    """The first problem among things that are to be text."""
    return next(filter(None, (problem_of_text(what, text) for what, text in texts)), None)
