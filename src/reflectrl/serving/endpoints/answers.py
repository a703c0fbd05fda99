"""Answers of a server: the text of a completion and its end, or an error in words that show neither key nor prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from reflectrl.core.types import Ending

QUOTED = 24
"""A server's complaint that quotes this many characters of a prompt is not shown."""
NESTED = 8
"""Number of levels of an error's body that are searched for words. Servers wrap others' errors a few times at most."""
MOST_TOKENS = 2**53
"""Largest valid token count. A larger number would not even fit a float."""


class UnreadableError(ValueError):
    """An answer is not a chat completion; the message says why. (The `openai` client does not check shapes.)"""


class Answer(str):
    """Text of an answer, with its end.

    Attributes:
        ending: "" if the answer is complete.
    """

    __slots__ = ("ending",)
    ending: Ending

    def __new__(cls, text: str = "", ending: Ending = "") -> Answer:
        answer = super().__new__(cls, text)
        answer.ending = ending
        return answer


def counted(endings: Mapping[str, int]) -> str:
    """Describe the numbers of answers that are not complete, such as "3 cut, 1 refused"; "" if there are none."""
    counts = [f"{count} {ending}" for ending, count in sorted(endings.items()) if count]
    return f"answers not complete: {', '.join(counts)}" if counts else ""


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
        content = _refusal(message)
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


def _refusal(message: Any) -> str:
    """Return the words with which a model declines; "" if it does not."""
    refusal = getattr(message, "refusal", None)
    return refusal if isinstance(refusal, str) else ""


LENGTHS = re.compile(
    r"length|max_(output_|completion_|new_)?tokens|token_limit|model_context_window_exceeded|truncated"
)
FILTERS = re.compile(
    r"content_?filter(ed)?|safety|image_safety|recitation|blocklist|blocked|prohibited_content|spii|sensitive|moderation"
    r"|guardrail_intervened"
)
BROKEN_OFF = re.compile(r"abort(ed)?|cancel(l?ed)?|interrupted|incomplete|insufficient_system_resource|network_error")
"""Values of `finish_reason`, in lower case: OpenAI's, Azure's, Anthropic's, Gemini's, vLLM's, DeepSeek's and GLM's."""


def ending_of(answer: Any) -> Ending:
    """Return the end of a completion, as its finish reason and its message tell it."""
    choice = answer.choices[0]
    reason = str(getattr(choice, "finish_reason", None) or "").lower()
    if FILTERS.fullmatch(reason):
        return "filtered"
    if reason == "refusal" or _refusal(choice.message):
        return "declined"
    return "cut" if LENGTHS.fullmatch(reason) or BROKEN_OFF.fullmatch(reason) else ""


def remark_on(answer: Any, text: str, ending: Ending, max_tokens: int) -> str:
    """Return a remark on a completion that is not as it should be, with a remedy if there is one; "" otherwise."""
    reason = str(getattr(answer.choices[0], "finish_reason", None) or "")
    if ending == "cut":
        return cut_off(max_tokens, silent=not without_thinking(text))
    if ending == "filtered":
        return f"the server withheld an answer ({reason})"
    if ending == "declined":
        return "the model declined to answer (refusal)"
    if without_thinking(text):
        return ""
    if reason.lower() in ("tool_calls", "function_call"):
        return "the model called a tool instead of answering with text"
    return "an answer holds only the model's thinking" if text else ""


def cut_off(max_tokens: int, silent: bool) -> str:
    """Return the remark about an answer that did not end by itself.

    Args:
        silent: True if the model had said nothing yet, except for its thinking.
    """
    when = " before the model had said anything" if silent else ""
    remedy = ", or turn the model's thinking off" if silent else ""
    return f"an answer was cut off at max_tokens = {max_tokens}{when}: raise max_tokens{remedy}"


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
        code: its words for the kind of error, such as "context_length_exceeded".
    """

    status: int | None
    complaint: str
    code: str = ""


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
    return ServerError(_status_of(body.get("error")) or _status_of(body), complaint, _codes(body.get("error")))


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


def _codes(error: object, levels: int = NESTED) -> str:
    """Return the words for the kind of an error: its "code", "type" and "status", also of errors within it."""
    if not isinstance(error, dict) or not levels:
        return ""
    named = [error[key] for key in ("code", "type", "status") if isinstance(error.get(key), str)]
    nested = [_codes(error.get(key), levels - 1) for key in ("error", "innererror")]
    return " ".join(filter(None, [*named, *nested]))


REFUSING = (400, 403, 413, 422, 451, 500)
"""HTTP statuses of a refused question. (llama.cpp once answered 500 to a prompt beyond its context.)"""
TOO_LONG = re.compile(
    r"""(?ix) context[ _-]?(?:length|window|size|limit|overflow) | maximum\s(?:context|input|prompt|sequence|model)
    | \b(?:prompt|input|message|request|conversation|text|payload)s?\b[^.]{0,60}\b(?:too\s(?:long|large|many)|exceed)
    | \bexceed(?:s|ed|ing)?\b[^.]{0,60}\b(?:context|tokens?\slimit|length|n_ctx|maximum\s(?:input|number\sof\stokens))
    | too\smany\s(?:input\s|prompt\s)?tokens | reduce\s(?:the|your)\s(?:length|message|prompt|input) | n_ctx | n_keep
    | string_above_max_length | range\sof\sinput\slength | longer\sthan\sthe\s(?:model|maximum)
    | max_new_tokens.{0,9}must\sbe | request_too_large | 上下文 | 超长 | 过长""",
)
"""Complaints about a question that does not fit the model's context."""
WITHHELD = re.compile(
    r"""(?ix) content[ _-]?(?:filter|policy|management|moderation|safety|violat) | moderat(?:ion|ed) | \bsafety\b
    | flagged | prohibited[ _]content | inappropriate | usage\s(?:polic|guideline) | polic(?:y|ies)\sviolat
    | violat\w*\s(?:our|usage)
    | \b(?:prompt|input|content|request)\b[^.]{0,40}\b(?:blocked|disallowed|unsafe|sensitive|high\srisk)
    | responsible.?ai | data_?inspection | invalid_prompt | new_sensitive | guardrail | 敏感 | 违规 | 不安全""",
)
"""Complaints of content filters about a question."""


def refusal_of(status: int | None, body: Any) -> Literal["length", "filter", "unclear", ""]:
    """Return why a server refuses a single question; "" if the error says something about all questions.

    Args:
        body: body of the error.

    Returns:
        "unclear" if the status is that of a refused question, and the words may be about anything.
    """
    if status not in REFUSING:
        return ""
    complaint = complaint_of(body)
    words = f"{complaint} {_codes(body)}"
    if status in (413, 451) or TOO_LONG.search(words):
        return "filter" if status == 451 else "length"
    if WITHHELD.search(words):
        return "filter"
    return "unclear" if complaint and status in (400, 422) else ""


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
