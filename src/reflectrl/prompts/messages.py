"""What chat models behind endpoints are told: the templates of `messages.j2` as messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from reflectrl.types import Observation

Message = dict[str, str]


@cache
def _words() -> Any:
    source = files("reflectrl.prompts").joinpath("messages.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).module


def said(role: str, text: str) -> Message:
    """One chat message."""
    return {"role": role, "content": text}


def conversation(role: str, kind: str, observation: Observation, history: int, *values: Any) -> list[Message]:
    """The beginning of a conversation about an observation.

    Args:
        role: who the model is to be: "role", a player, or "teacher".
        kind: what it is asked: "act", "reason", "reflect", "walk", "explain" or "correct".
        history: most characters of the observation's history that are shown: the end of it, from a line's beginning.
        values: what else that question needs, in the order of the template's arguments.
    """
    past = observation.history
    if len(past) > history:
        past = past[-history:]
        past = past[past.find("\n") + 1 :]
    asked = getattr(_words(), kind)(past, observation.state, observation.actions, *values)
    return [said("system", str(getattr(_words(), role)())), said("user", str(asked))]


def continued(talk: Sequence[Message], answer: str, question: Message) -> list[Message]:
    """The conversation after an answer, with the next question.

    Where nothing was answered, the question joins the one before it: many servers refuse a message without text, and
    others two of the user's in a row.
    """
    if answer.strip():
        return [*talk, said("assistant", answer), question]
    *before, last = talk
    return [*before, said(last["role"], f"{last['content']}\n\n{question['content']}")]


def folded(talk: Sequence[Message]) -> list[Message]:
    """The conversation with the system's text at the beginning of the user's first message, for models without it."""
    first, *rest = talk
    if first["role"] != "system" or not rest:
        return list(talk)
    asked, *later = rest
    return [said(asked["role"], f"{first['content']}\n\n{asked['content']}"), *later]


def comparison(first: str, second: str) -> list[Message]:
    """The question which of two attempts at a task is better: A, B, or TIE."""
    return [said("user", str(_words().compare(first, second)))]


def follow_up(kind: str, *values: Any) -> Message:
    """A later message to the model: "now_act", "repair" (with the actions) or "again" (with what was wrong)."""
    return said("user", str(getattr(_words(), kind)(*values)))
