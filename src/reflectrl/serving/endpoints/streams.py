"""Event streams of servers that stream although they were asked not to, joined into one completion."""

from __future__ import annotations

import json
from typing import Any

DONE = b"[DONE]"
FIELDS = ("content", "refusal")
"""Texts of a message that are sent piece by piece and read here. Reasoning is sent in other fields."""


class BrokenStreamError(ValueError):
    """A stream ended before the answer did."""


def whole_answer(data: bytes) -> bytes:
    """Return the JSON of an answer that came as events or as lines of JSON; other data as they are.

    A plain answer may also have stream marks around it.

    Raises:
        BrokenStreamError: the stream has no end, as if the connection had broken.
    """
    lines = [line.strip() for line in data.splitlines()]
    is_stream = any(line.startswith((b"data:", b"event:", b":")) for line in lines[:4]) or DONE in lines[-2:]
    if not is_stream and not _is_list_of_json(lines):
        return data
    chunks, done = [], False
    for line in lines:
        payload = line.removeprefix(b"data:").strip()
        if payload == DONE:
            done = True
        elif payload.startswith(b"{"):
            try:
                chunks.append(json.loads(payload))
            except (ValueError, RecursionError):
                return data  # the client calls it unreadable
    chunks = [chunk for chunk in chunks if isinstance(chunk, dict)]
    if not chunks:
        return data
    complete = next((chunk for chunk in chunks if _is_complete(chunk) or chunk.get("error")), None)
    answer = complete if complete is not None else _joined(chunks)
    if complete is None and not done and answer["choices"] and not answer["choices"][0]["finish_reason"]:
        raise BrokenStreamError("the stream of the answer broke off")
    return json.dumps(answer).encode()  # ASCII: half a character stays an escape


def _is_list_of_json(lines: list[bytes]) -> bool:
    """Return whether data hold several objects of JSON, one per line."""
    filled = [line for line in lines if line]
    return len(filled) > 1 and all(line[:1] == b"{" and line[-1:] == b"}" for line in filled)


def _is_complete(chunk: dict[str, Any]) -> bool:
    """Return whether a chunk holds a whole message."""
    choices = chunk.get("choices")
    return isinstance(choices, list) and bool(choices) and isinstance(choices[0], dict) and "message" in choices[0]


def _joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a completion with the first choice of all chunks, and the last usage."""
    texts = {name: list[str]() for name in FIELDS}
    reason, usage, begun = None, None, False
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                continue
            begun, reason = True, choice.get("finish_reason") or reason
            delta = choice.get("delta")
            for name in FIELDS:
                words = delta.get(name) if isinstance(delta, dict) else None
                if isinstance(words, str):
                    texts[name].append(words)
    message = {name: "".join(written) if written else None for name, written in texts.items()}
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}] if begun else []
    return {**chunks[-1], "object": "chat.completion", "choices": choices, "usage": usage}
