"""Checks of the values that hooks of an environment and its teacher return, with error messages.

Text that UTF-8 cannot encode, a reward that is a string, or an event that is a number would make a log unreadable, or
cause an exception in code that knows neither the environment nor the task. Each check returns the problem in a few
words, or None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from reflectrl.core.plugins import one_line
from reflectrl.core.types import AuxiliaryQuestion, Outcome, Task, UserError


class ContractError(UserError):
    """Error for a hook of an environment that returned something invalid. Names environment, task and promise."""

    promise = ""
    """The broken promise and the task, without the rest of the message."""


def require_kept(env: object, task: object, problem: str | None) -> None:
    """Raise `ContractError` if there is a problem."""
    if problem is not None:
        name = task.id if isinstance(task, Task) else task
        error = ContractError(f"environment {type(env).__name__} breaks a promise on task {name!r:.200}: {problem}")
        error.promise = f"{problem} (task {name!r:.200})"
        raise error


def raised(env: str, task: Task, error: BaseException) -> UserError:
    """Return a UserError for an environment's exception. It names the environment, the task and the exception."""
    return UserError(f"environment {env} raised on task {task.id!r}: {one_line(error)}")


def problem_of_task(task: object) -> str | None:
    """Return the problem with a task, or None."""
    if not isinstance(task, Task):
        return f"tasks are Task objects, not {type(task).__name__}"
    return _first((f"a task's {name}", getattr(task, name)) for name in ("id", "env", "split", "stage"))


def problem_of_observation(history: Any, state: Any, actions: Any, over: bool) -> str | None:
    """Return the problem with an observation, or None. Once the episode is `over`, no action needs to be legal."""
    if isinstance(actions, (str, bytes)) or not isinstance(actions, Sequence):
        return f"legal actions are a list of texts, not {actions!r:.60}"
    if not actions and not over:
        return "legal actions are not empty before the end"
    texts = (("history", history), ("state", state), *(("an action", action) for action in actions))
    return _first(texts) or _problem_of_actions(actions)


def _problem_of_actions(actions: Sequence[str]) -> str | None:
    """Return the problem with a list of actions, or None. Players need unique, non-empty actions of a single line."""
    if not all(map(str.strip, actions)):
        return "legal actions are non-empty strings, not only spaces"
    broken = next((action for action in actions if "\n" in action), None)
    if broken is not None:
        return f"legal actions hold no newline, as {broken!r:.60} does"
    if len(set(actions)) < len(actions):
        [(twice, count)] = Counter(actions).most_common(1)
        return f"legal actions are unique, and {twice!r:.60} is listed {count} times"
    return None


def problem_of_outcome(outcome: Any) -> str | None:
    """Return the problem with the result of `apply`, or None."""
    if not isinstance(outcome, Outcome):
        return f"apply() gives an Outcome, not {outcome!r:.60}"
    if not is_finite(outcome.reward):
        return f"rewards are finite numbers, not {outcome.reward!r:.60}"
    for name in ("terminated", "success", "truncated"):
        if not isinstance(flag := getattr(outcome, name), bool | np.bool_):
            return f"{name} is True or False, not {flag!r:.60}"
    if not isinstance(outcome.events, (list, tuple)):
        return f"events are a tuple of texts, not {outcome.events!r:.60}"
    return _first(("an event", event) for event in outcome.events)


def problem_of_advice(ability: str, said: Any, actions: int) -> str | None:
    """Return the problem with a teacher's answer, or None.

    Args:
        ability: the method of the teacher that gave the answer.
        said: the answer: the text of an analysis, or the index of a legal action.
        actions: number of legal actions.
    """
    if ability == "analyse":
        return _first([("analyse()", said)])
    if isinstance(said, Integral) and not isinstance(said, bool) and 0 <= int(said) < actions:
        return None
    return f"{ability}() gives the index of a legal action, not {said!r:.60} of {actions}"


def problem_of_preferences(weights: Any, actions: int) -> str | None:
    """Return the problem with a teacher's weights of the legal actions, or None. An empty sequence has none."""
    if not isinstance(weights, Sequence | np.ndarray) or isinstance(weights, str):
        return f"preferences() gives a sequence of numbers, not {weights!r:.60}"
    if not len(weights):
        return None
    if len(weights) != actions:
        return f"preferences() gives one number for each of {actions} legal actions, not {len(weights)}"
    if not all(is_finite(weight) and weight >= 0 for weight in weights) or not any(weight > 0 for weight in weights):
        return f"preferences() gives numbers of at least 0, and at least one above 0, not {weights!r:.60}"
    return None


def problem_of_questions(questions: Any) -> str | None:
    """Return the problem with a teacher's further questions, or None."""
    if not isinstance(questions, Sequence) or not all(isinstance(entry, AuxiliaryQuestion) for entry in questions):
        return f"questions() gives a sequence of AuxiliaryQuestion, not {questions!r:.60}"
    for question in questions:
        if len(set(question.answers)) < max(2, len(question.answers)):
            return f"a question has two or more different answers, not {question.answers!r:.60}"
        if question.correct not in range(len(question.answers)):
            return f"a question's correct answer is the index of one of its answers, not {question.correct!r:.60}"
        texts = (("a question", question.text), *(("an answer", answer) for answer in question.answers))
        if (problem := _first(texts)) is not None:
            return problem
    return None


def is_finite(number: object) -> bool:
    """Return whether this is a finite real number, of Python or numpy, that fits into a float."""
    if isinstance(number, bool) or not isinstance(number, Real):
        return False
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _first(texts: Iterable[tuple[str, object]]) -> str | None:
    """Return the first problem among values that must be text, or None."""
    for subject, text in texts:
        if not isinstance(text, str):
            return f"{subject} is text, not {text!r:.60}"
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            return f"{subject} is text that UTF-8 can hold, without {text[error.start]!r}"
    return None
