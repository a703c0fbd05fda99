"""What a server answers: the text of a completion, or what went wrong, in words that show neither key nor prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

QUOTED = 24
"""So many characters of a prompt in a server's complaint, and the complaint is not shown."""


class UnreadableError(ValueError):
    """An answer that is no chat completion; the message says why. The client itself checks no shapes."""


def text_of(answer: Any) -> str:
    """The text of a completion, "" where the model said nothing.

    Raises:
        UnreadableError: it has another shape.
    """
    try:
        content: object = answer.choices[0].message.content
    except (AttributeError, IndexError, TypeError) as error:
        raise UnreadableError("the answer is not a chat completion (does the address end in /v1?)") from error
    if content is not None and not isinstance(content, str):
        raise UnreadableError("the answer is not a chat completion (its content is not text)")
    return content or ""


def tokens_of(answer: Any) -> tuple[int, int] | None:
    """The tokens that a server says it has read and written; None if it does not say."""
    used = getattr(answer, "usage", None)
    read, written = getattr(used, "prompt_tokens", None), getattr(used, "completion_tokens", None)
    return (read, written) if isinstance(read, int) and isinstance(written, int) and min(read, written) >= 0 else None


def without_thinking(answer: str) -> str:
    """The answer without the <think> ... </think> part that some servers pass on; "" if the thinking never ended."""
    return re.sub(r"<think>.*?(</think>|\Z)", "", answer, flags=re.DOTALL).rpartition("</think>")[2].strip()


def complaint_of(body: Any) -> str:
    """What a server says is wrong."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", "") if isinstance(inner, dict) else inner
    return body if isinstance(body, str) else ""


def shown_complaint(body: Any, prompts: Sequence[str]) -> str:
    """What a server says is wrong, on one line; "" if it says nothing, or repeats a part of a prompt."""
    complaint = " ".join(complaint_of(body).split())[:300]
    return "" if any(_quotes(complaint, prompt) for prompt in prompts) else complaint


def _quotes(complaint: str, prompt: str) -> bool:
    said, plain = complaint.replace("\\n", " "), " ".join(prompt.split())
    return any(said[i : i + QUOTED] in plain for i in range(len(said) - QUOTED + 1)) or (bool(plain) and plain in said)
