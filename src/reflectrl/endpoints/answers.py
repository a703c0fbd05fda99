"""What a server answers: the text of a completion, or what went wrong, in words that show neither key nor prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

QUOTED = 24
"""So many characters of a prompt in a server's complaint, and the complaint is not shown."""
NESTED = 8
"""Levels of an error's body that are searched for words; servers wrap errors of others a few times at most."""
MOST_TOKENS = 2**53
"""A larger count is no count: it would not even fit a float."""


class UnreadableError(ValueError):
    """An answer that is no chat completion; the message says why. The client itself checks no shapes."""


# ---- what was said ---------------------------------------------------------------------------------------------------


def text_of(answer: Any) -> str:
    """The text of a completion, "" where the model said nothing.

    Raises:
        UnreadableError: it has another shape.
    """
    try:
        message = answer.choices[0].message
        content: object = message.content
    except (AttributeError, LookupError, TypeError) as error:
        raise UnreadableError("the answer is not a chat completion (does the address end in /v1?)") from error
    if isinstance(content, list):
        content = _joined(content)
    if content is None:
        refusal = getattr(message, "refusal", None)  # where a model declines, that is all it says
        content = refusal if isinstance(refusal, str) else ""
    if not isinstance(content, str):
        raise UnreadableError("the answer is not a chat completion (its content is not text)")
    # An answer that is cut in the middle of a pair of surrogates can neither be printed nor be sent back.
    return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _joined(parts: Sequence[object]) -> str:
    """The text of a content that comes as parts, without those that hold the model's thinking."""
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
    """Why a completion says nothing but thoughts, in words that name a way out; "" if it says something."""
    if without_thinking(text):
        return ""
    reason = str(getattr(answer.choices[0], "finish_reason", "")).lower()
    if reason in ("length", "max_tokens"):
        return cut_off(max_tokens)
    if reason == "content_filter":
        return "the server withheld an answer (content_filter)"
    if reason in ("tool_calls", "function_call"):
        return "the model called a tool where it was asked for text"
    return "an answer holds thoughts and nothing else" if text else ""


def cut_off(max_tokens: int) -> str:
    """The remark about an answer that ended while the model was still thinking."""
    return (
        f"an answer was cut off at max_tokens = {max_tokens} before the model had said anything: "
        "raise max_tokens, or turn the model's thinking off"
    )


HARMONY = re.compile(
    r"<\|channel\|>\s*(\w+)(?:[^<]|<\|constrain\|>)*<\|message\|>(.*?)(?=<\|(?:end|return|call|start|channel)\|>|\Z)",
    re.DOTALL,
)
"""A message in the format of gpt-oss: its channel ("analysis", "commentary" or "final") and its text."""
STRIPPED = re.compile(r"\Aanalysis.*assistantfinal", re.DOTALL)
"""The same where a server has left the markers out, and so joined what stood between them."""
THOUGHT = re.compile(
    r"<((?:seed:)?think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|◁think▷.*?(?:◁/think▷|\Z)",
    re.DOTALL,
)
ENDS = re.compile(r"</(?:(?:seed:)?think|thinking|thought|reasoning)>|\[/THINK\]|◁/think▷")
"""The end of a thought whose beginning stands in the prompt, as some chat templates have it."""


def without_thinking(answer: str) -> str:
    """The answer without what the model thought before it, where a server passes that on as text.

    Known are tags such as <think> ... </think>, [THINK] ... [/THINK], and the channels of the harmony format.

    Returns:
        The answer; "" if the thinking never ended.
    """
    if "<|channel|>" in answer:
        answer = "".join(text for channel, text in HARMONY.findall(answer) if channel == "final")
    return ENDS.split(THOUGHT.sub("", STRIPPED.sub("", answer)))[-1].strip()


# ---- what it took ----------------------------------------------------------------------------------------------------


def tokens_of(answer: Any, text: str) -> tuple[int, int] | None:
    """The tokens that a server says it has read and written, reasoning included.

    Some servers leave the reasoning out of `completion_tokens`; then `total_tokens` has it.

    Args:
        text: of the answer.

    Returns:
        None if the server does not count: it says nothing, or 0 for what cannot have been nothing.
    """
    used = getattr(answer, "usage", None)
    read, written = (_count(getattr(used, name, None)) for name in ("prompt_tokens", "completion_tokens"))
    if read is None or written is None:
        return None
    total = _count(getattr(used, "total_tokens", None)) or 0
    written = max(written, total - read)
    return (read, written) if read and (written or not text) else None


def _count(number: object) -> int | None:
    """A number of tokens as servers write it (30 or 30.0); None if it is something else."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return int(number) if 0 <= number <= MOST_TOKENS and number == int(number) else None


# ---- what went wrong -------------------------------------------------------------------------------------------------


class ServerError(NamedTuple):
    """An error in the body of an answer.

    Attributes:
        status: the HTTP status that it speaks of; None where it names none.
        complaint: what it says.
    """

    status: int | None
    complaint: str


def error_in(data: bytes) -> ServerError | None:
    """The error that stands in a body which came as a success; None if there is none, or the body is no JSON.

    Routers of several providers answer so when the one that they chose fails.
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
    """The HTTP status that an error names as a number or by a word."""
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
    """What a server says is wrong: in OpenAI's form, as FastAPI's {"detail": [...]}, or in their like."""
    if isinstance(body, str):
        return body
    if not levels:
        return ""
    if isinstance(body, list):
        said = [complaint_of(one, levels - 1) for one in body[:3]]
        return "; ".join(filter(None, said))
    if not isinstance(body, dict):
        return ""
    found = (complaint_of(body.get(key), levels - 1) for key in ("error", "message", "detail", "msg", "errors"))
    complaint = next(filter(None, found), "")
    place = body.get("loc")  # the field at fault: ["body", "max_tokens"]
    if complaint and isinstance(place, list):
        return f"{'.'.join(str(part) for part in place[:NESTED])}: {complaint}"
    return complaint


def shown_complaint(body: Any, prompts: Sequence[str]) -> str:
    """What a server says is wrong, on one line; "" if it says nothing, or repeats a part of a prompt."""
    complaint = " ".join(complaint_of(body).split())[:300]
    return "" if any(_quotes(complaint, prompt) for prompt in prompts) else complaint


def _quotes(complaint: str, prompt: str) -> bool:
    said, plain = complaint.replace("\\n", " "), " ".join(prompt.split())
    return any(said[i : i + QUOTED] in plain for i in range(len(said) - QUOTED + 1)) or (bool(plain) and plain in said)
