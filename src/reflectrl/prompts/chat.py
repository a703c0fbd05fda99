"""The words that chat models behind an endpoint read, and how their answers are read back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from reflectrl.types import Observation


@lru_cache(maxsize=1)
def _words() -> Any:
    source = files("reflectrl.prompts").joinpath("chat.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).module


def reflect_request(observation: Observation, instructions: str = "") -> str:
    """What a chat model is asked when it reflects; `instructions` are the rules of the environment, if wanted."""
    return _words().reflect(instructions, observation)


def act_request(observation: Observation, reflection: str | None, instructions: str = "") -> str:
    """What a chat model is asked when it acts: the observation, the reflection, and the actions numbered from 1."""
    return _words().act(instructions, observation, reflection)


def again_request(count: int) -> str:
    """What it is told when its answer named none of the `count` actions."""
    return _words().again(count)


def without_thinking(answer: str) -> str:
    """The answer without the <think> ... </think> part that some servers pass on; "" if the thinking never ended."""
    return re.sub(r"<think>.*?(</think>|\Z)", "", answer, flags=re.DOTALL).rpartition("</think>")[2].strip()


NUMBER = r"(?<![\w.-])(\d+)(?!\w|\.\d)"
"""A whole number that stands alone, so neither "-1", "1.5" nor "file2"."""


def read_choice(answer: str, actions: Sequence[str]) -> int | None:
    """The index of the action that a chat model's answer names, or None if that is unclear.

    Understood are, in this order: the text of an action; a number after the word "choice"; a number at the start
    ("3", "3: north", "3."); a number that is the only one in the answer.
    """
    answer = without_thinking(answer)
    if answer in actions and not answer.isdigit():
        return actions.index(answer)
    for pattern in (rf"(?i)\bchoice\W*?{NUMBER}", rf"\A[^\w-]*{NUMBER}\W*?(?:\Z|[:.)])", NUMBER):
        numbers = set(re.findall(pattern, answer))
        if numbers:
            break
    else:
        return None
    number = int(numbers.pop()) if len(numbers) == 1 else 0
    return number - 1 if 1 <= number <= len(actions) else None
