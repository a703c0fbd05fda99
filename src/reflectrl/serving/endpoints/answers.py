"""Answers of a server: the text of a completion, or an error in words that show neither key nor prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

QUOTED = 24
"""A server's complaint that quotes this many characters of a prompt is not shown."""
NESTED = 8
"""Number of levels of an error's body that are searched for words. Servers wrap others' errors a few times at most."""
MOST_TOKENS = 2**53
"""Largest valid token count. A larger number would not even fit a float."""


class UnreadableError(ValueError):
    """An answer is not a chat completion; the message says why. (The `openai` client does not check shapes.)"""


# ---- what was said ---------------------------------------------------------------------------------------------------


def text_of(answer: Any) -> str:
    """Return the text of a completion, "" if the model said nothing.

    Raises:
        UnreadableError: the answer has another shape.
    """
    try:
        message = answer.choices[0].message
        content: object = message.content
    except (AttributeError, LookupError, TypeError) as error:
        raise UnreadableError("the answer is not a chat completion (does the address end in /v1?)") from error
    if isinstance(content, list):
        content = _joined(content)
    if content is None:
        refusal = getattr(message, "refusal", None)  # a model that declines may say nothing else
        content = refusal if isinstance(refusal, str) else ""
    if not isinstance(content, str):
        raise UnreadableError("the answer is not a chat completion (its content is not text)")
    # An answer that is cut in the middle of a pair of surrogates can neither be printed nor be sent back.
    return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _joined(parts: Sequence[object]) -> str:
    """Join the text parts of a content, without the parts that hold the model's thinking."""
    texts = []
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("type"), str):
            if "text" not in part["type"]:  # "thinking", "reasoning", "image_url"
                continue
            part = part.get("text")
        if not isinstance(part, str):
            raise UnreadableError("the answer is not a chat completion (a part of its content is not text)")
        texts.append(part)
    return "".join(texts)


def why_silent(answer: Any, text: str, max_tokens: int) -> str:
    """Return why a completion has no answer, with a remedy if there is one; "" if it has one or names no reason."""
    if without_thinking(text):
        return ""
    reason = str(getattr(answer.choices[0], "finish_reason", "")).lower()
    if reason in ("length", "max_tokens"):
        return cut_off(max_tokens)
    if reason == "content_filter":
        return "the server withheld an answer (content_filter)"
    if reason in ("tool_calls", "function_call"):
        return "the model called a tool instead of answering with text"
    return "an answer holds only the model's thinking" if text else ""


def cut_off(max_tokens: int) -> str:
    """Return the remark about an answer that ended while the model was still thinking."""
    return (
        f"an answer was cut off at max_tokens = {max_tokens} before the model had said anything: "
        "raise max_tokens, or turn the model's thinking off"
    )


HARMONY = re.compile(
    r"<\|channel\|>\s*+(\w++)(?:[^<]|<\|constrain\|>)*+<\|message\|>(.*?)(?=<\|(?:end|return|call|start|channel)\|>|\Z)",
    re.DOTALL,
)
"""A message in the format of gpt-oss: its channel ("analysis", "commentary" or "final") and its text."""
STRIPPED = re.compile(r"\Aanalysis.*assistantfinal", re.DOTALL)
"""The same message after a server has removed the markers, so that channel names and text are joined."""
THOUGHT = re.compile(
    r"<((?:seed:)?think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|◁think▷.*?(?:◁/think▷|\Z)",
    re.DOTALL,
)
ENDS = re.compile(r"</(?:(?:seed:)?think|thinking|thought|reasoning)>|\[/THINK\]|◁/think▷")
"""End of a thought whose beginning is part of the prompt, as in some chat templates."""


def without_thinking(answer: str) -> str:
    """Remove the model's thinking from an answer, for servers that return it as text.

    It removes tags such as <think> ... </think>, [THINK] ... [/THINK], and the channels of the harmony format.

    Returns:
        The answer; "" if the thinking never ended.
    """
    if "<|channel|>" in answer:
        answer = "".join(text for channel, text in HARMONY.findall(answer) if channel == "final")
    return ENDS.split(THOUGHT.sub("", STRIPPED.sub("", answer)))[-1].strip()


# ---- what it took ----------------------------------------------------------------------------------------------------


def tokens_of(answer: Any, text: str) -> tuple[int, int] | None:
    """Return the tokens that a server reports as read and written, reasoning included.

    Some servers leave the reasoning out of `completion_tokens`; then `total_tokens` has it.

    Args:
        text: text of the answer.

    Returns:
        None if the server does not count: it reports nothing, or 0 for what cannot have been empty.
    """
    used = getattr(answer, "usage", None)
    read, written = (_count(getattr(used, name, None)) for name in ("prompt_tokens", "completion_tokens"))
    if read is None or written is None:
        return None
    total = _count(getattr(used, "total_tokens", None)) or 0
    written = max(written, total - read)
    return (read, written) if read and (written or not text) else None


def _count(number: object) -> int | None:
    """Return a number of tokens as servers write it (30 or 30.0); None if it is something else."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return int(number) if 0 <= number <= MOST_TOKENS and number == int(number) else None


# ---- what went wrong -------------------------------------------------------------------------------------------------


class ServerError(NamedTuple):
    """An error in the body of an answer.

    Attributes:
        status: the HTTP status that the error names; None if it names none.
        complaint: the server's message.
    """

    status: int | None
    complaint: str


def error_in(data: bytes) -> ServerError | None:
    """Return the error in a body that came with a success status; None if there is none, or the body is not JSON.

    Routers of several providers answer this way when the chosen provider fails.
    """
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    if choices:
        choice = choices[0] if isinstance(choices, list) else None
        if not isinstance(choice, dict) or choice.get("finish_reason") != "error":
            return None
        body = {"error": choice.get("error") or body.get("error") or "the server broke the answer off"}
    complaint = complaint_of(body)
    failed = bool(body.get("error")) or body.get("object") == "error"
    if not (failed or complaint):
        return None
    return ServerError(_status_of(body.get("error")) or _status_of(body), complaint)


def _status_of(error: object) -> int | None:
    """Return the HTTP status that an error names as a number or by a word."""
    if not isinstance(error, dict):
        return None
    named = [error.get(key) for key in ("code", "status", "status_code", "type")]
    for value in named:
        if isinstance(value, int | str) and re.fullmatch("[45][0-9][0-9]", str(value)):
            return int(value)
    words = " ".join(value for value in named if isinstance(value, str)).lower()
    if re.search(r"rate.?limit|too.?many|exhausted|overloaded", words):
        return 429
    return 503 if re.search(r"server.?error|internal|unavailable|time.?out", words) else None


def complaint_of(body: Any, levels: int = NESTED) -> str:
    """Return a server's error message: in OpenAI's form, as FastAPI's {"detail": [...]}, or in a similar form."""
    if isinstance(body, str):
        return body
    if not levels:
        return ""
    if isinstance(body, list):
        complaints = [complaint_of(entry, levels - 1) for entry in body[:3]]
        return "; ".join(filter(None, complaints))
    if not isinstance(body, dict):
        return ""
    candidates = (complaint_of(body.get(key), levels - 1) for key in ("error", "message", "detail", "msg", "errors"))
    complaint = next(filter(None, candidates), "")
    location = body.get("loc")  # the field at fault: ["body", "max_tokens"]
    if complaint and isinstance(location, list):
        return f"{'.'.join(str(part) for part in location[:NESTED])}: {complaint}"
    return complaint


def shown_complaint(body: Any, prompts: Sequence[str]) -> str:
    """Return a server's error message on one line; "" if there is none, or it quotes a part of a prompt."""
    complaint = " ".join(complaint_of(body).split())[:300]
    return "" if any(_quotes(complaint, prompt) for prompt in prompts) else complaint


def _quotes(complaint: str, prompt: str) -> bool:
    flat, plain = complaint.replace("\\n", " "), " ".join(prompt.split())
    return any(flat[i : i + QUOTED] in plain for i in range(len(flat) - QUOTED + 1)) or (bool(plain) and plain in flat)
