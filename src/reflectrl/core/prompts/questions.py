"""Texts of questions that no environment wrote: a state, instructions, and options with descriptions.

Clients of decision models send JSON. Training on such questions uses the same functions, so that a served model reads
the texts that it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def state_text(state: Any) -> str:
    """Return a state as lines of text: a string as it is, an object as lines `Name: value`, an array as `- value`.

    Names get a capital letter, since OpenAI's form of the same question is a text with such lines. Every text ends with
    a line break, so that what follows begins a line.
    """
    if isinstance(state, Mapping):
        lines = [f"{name[:1].upper()}{name[1:]}: {value_text(value)}" for name, value in state.items()]
    elif isinstance(state, list | tuple):
        lines = [f"- {value_text(value)}" for value in state]
    else:
        lines = [value_text(state)]
    text = "\n".join(lines)
    return text if not text or text.endswith("\n") else f"{text}\n"


def value_text(value: Any) -> str:
    """Return a JSON value as text: a string as it is, nothing for null, everything else as compact JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def instructions_text(instructions: Any) -> str:
    """Return the line of instructions that follows a state; "" without instructions."""
    text = value_text(instructions)
    return f"Instructions: {text}\n" if text else ""


def option_text(name: str, description: Any = None) -> str:
    """Return an option as the model reads it: its name, and its description if there is one."""
    described = value_text(description)
    return f"{name}: {described}" if described else name
