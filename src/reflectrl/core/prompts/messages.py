"""Messages to chat models behind endpoints, rendered from the templates of `messages.j2`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from reflectrl.core.types import Observation

Message = dict[str, str]


@cache
def _words() -> Any:
    source = files("reflectrl.core.prompts").joinpath("messages.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).module


def said(role: str, text: str) -> Message:
    """Return a chat message."""
    return {"role": role, "content": text}


def conversation(role: str, kind: str, observation: Observation, history: int, *values: Any) -> list[Message]:
    """Begin a conversation about an observation: the system message and the first question.

    Args:
        role: template of the system message: "role" for a player, or "teacher".
        kind: template of the question: "act", "reason", "reflect", "walk", "explain", "correct" or "hindsight".
        history: largest number of characters of the history to show. Its end is shown, from the beginning of a line.
        values: further arguments of the question's template, in order.
    """
    past = observation.history
    if len(past) > history:
        past = past[-history:]
        past = past[past.find("\n") + 1 :]
    question = getattr(_words(), kind)(past, observation.state, observation.actions, *values)
    return [said("system", str(getattr(_words(), role)())), said("user", str(question))]


def continued(talk: Sequence[Message], answer: str, question: Message) -> list[Message]:
    """Continue a conversation with an answer and the next question.

    If the answer is empty, the question is added to the previous one. Many servers refuse a message without text, and
    others refuse two user messages in a row.
    """
    if answer.strip():
        return [*talk, said("assistant", answer), question]
    *before, last = talk
    return [*before, said(last["role"], f"{last['content']}\n\n{question['content']}")]


def folded(talk: Sequence[Message]) -> list[Message]:
    """Move the system message into the user's first message, for models without a system role."""
    first, *rest = talk
    if first["role"] != "system" or not rest:
        return list(talk)
    question, *later = rest
    return [said(question["role"], f"{first['content']}\n\n{question['content']}"), *later]


def comparison(first: str, second: str) -> list[Message]:
    """Ask for a comparison of two attempts at a task: A, B, or TIE."""
    return [said("user", str(_words().compare(first, second)))]


def follow_up(kind: str, *values: Any) -> Message:
    """Return a later message to the model: "now_act", "repair" (with the actions) or "again" (with the problem)."""
    return said("user", str(getattr(_words(), kind)(*values)))
