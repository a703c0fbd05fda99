"""Dialogues as text: "Human: ...", "Assistant: ..." with an empty line before each turn, and back to turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reflectrl.samples.rows import BadRowError, Row, text

Turns = list[tuple[str, str]]
"""(who speaks, what is said)."""

HUMAN, ASSISTANT, SYSTEM = "Human", "Assistant", "System"
ROLES = {"user": HUMAN, "human": HUMAN, "prompter": HUMAN, "assistant": ASSISTANT, "gpt": ASSISTANT, "system": SYSTEM}
"""What data files call the speakers."""

_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant|System):[ \t]?")
_MARK = re.compile(r"\s*(?:<\|(prompter|user|human|assistant|system)\|>|(Human|Assistant|System):)[ \t]?")


def render(turns: Iterable[tuple[str, str]]) -> str:
    """The dialogue so far as a prompt: it ends where the assistant is to speak."""
    return "".join(f"\n\n{role}: {said}" for role, said in turns) + f"\n\n{ASSISTANT}:"


def split(dialogue: str) -> Turns:
    """The turns of a dialogue in this form, an unfinished last one with "" as what is said; [] if it is none."""
    first = _TURN.search(dialogue)
    if not first or dialogue[: first.start()].strip():
        return []
    parts = _TURN.split(dialogue[first.start() :])[1:]
    return [(role, said.strip()) for role, said in zip(parts[::2], parts[1::2], strict=True)]


def marked(turns: Sequence[str]) -> Turns:
    """Turns whose speakers are marked ("<|prompter|>Hello", "Human: Hello"), without the assistant's open turn.

    Where nobody is marked, the human spoke last, and both took turns.
    """
    found = [_MARK.match(turn) for turn in turns]
    if not any(found):
        return [((ASSISTANT, HUMAN)[(len(turns) - i) % 2], turn.strip()) for i, turn in enumerate(turns)]
    if not all(found):
        raise BadRowError("turns of which only some name the speaker", repr(turns)[:60])
    marks = [match for match in found if match]
    roles = [ROLES[(match[1] or match[2]).lower()] for match in marks]
    said = [turn[match.end() :].strip() for turn, match in zip(turns, marks, strict=True)]
    dialogue = list(zip(roles, said, strict=True))
    return dialogue[:-1] if dialogue[-1] == (ASSISTANT, "") else dialogue


def messages(value: Sequence[Row]) -> Turns:
    """Turns that are given as {"role", "content"} messages."""
    turns = []
    for message in value:
        if not isinstance(message, dict):
            raise BadRowError("a message must be an object", f"not {message!r:.60}")
        role = text(message, "role")
        if role.lower() not in ROLES:
            raise BadRowError("unknown role", f"{role!r:.60}")
        turns.append((ROLES[role.lower()], text(message, "content").strip()))
    return turns
