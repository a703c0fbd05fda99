"""Conversion between dialogues and text. By default, turns are "Human: ..." and "Assistant: ..." after empty lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reflectrl.wings.text.samples.rows import BadRowError, Row, checked, text

Turns = list[tuple[str, str]]
"""Turns of a dialogue as (speaker, text)."""

HUMAN, ASSISTANT, SYSTEM = "Human", "Assistant", "System"
ROLES = {"user": HUMAN, "human": HUMAN, "prompter": HUMAN, "assistant": ASSISTANT, "gpt": ASSISTANT, "system": SYSTEM}
"""Names of speakers in data files → our names."""

STYLES = ("labelled", "dialogpt", "guanaco")
"""Formats of dialogues: "Human: ..." and "Assistant: ..."; end-of-text after each turn (DialoGPT); or a preamble and
"### Human: ... ### Assistant: ..." on one line (the QLoRA adapters Guanaco, and the published adapters of A-LoL)."""
END = "<|endoftext|>"
PREAMBLE = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, detailed,"
    " and polite answers to the user's questions.\n"
)
"""Beginning of every prompt of the style "guanaco"."""
KNOWLEDGE = "Knowledge:"
"""Marker of the assistant's knowledge, which stands before the first turn."""

ONLY = 'a message has a role and a content, which is text or parts {"type": "text", "text": "..."}'
"""Description of supported messages, for errors."""

_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant|System):[ \t]?")
_HASHED = re.compile(r"(?:\A|(?<=\s))### (Human|Assistant|System):[ \t]?")
_MARK = re.compile(r"\s*(?:<\|(prompter|user|human|assistant|system)\|>|(Human|Assistant|System):)[ \t]?")


def render(turns: Iterable[tuple[str, str]], knowledge: str = "", style: str = "labelled") -> str:
    """Render the dialogue so far as a prompt, which ends where the assistant's answer begins."""
    knowledge_line = f"{KNOWLEDGE} {knowledge}" if knowledge else ""
    if style == "dialogpt":
        # END may only end turns.
        texts = [text.replace(END, "") for text in (knowledge_line, *(utterance for _, utterance in turns))]
        return "".join(text + END for text in texts if text)
    if style == "guanaco":
        marked_turns = (f"### {role}: {utterance} " for role, utterance in turns)
        beginning = f"{knowledge_line}\n{PREAMBLE}" if knowledge_line else PREAMBLE
        return f"{beginning}{''.join(marked_turns)}### {ASSISTANT}:"
    return knowledge_line + "".join(f"\n\n{role}: {utterance}" for role, utterance in turns) + f"\n\n{ASSISTANT}:"


def answer(said: str, style: str = "labelled") -> str:
    """Render the next turn as the completion of such a prompt."""
    return said if style == "dialogpt" else f" {said}"


def split(dialogue: str) -> Turns:
    """Split a dialogue in any style into turns; [] if the text is not a dialogue.

    An unfinished last turn has the text "". Knowledge before the first turn is skipped.
    """
    if dialogue.endswith(END):
        content = dialogue.split(END)[:-1]
        return [*_alternating(content[content[0].startswith(KNOWLEDGE) :]), (ASSISTANT, "")]
    pattern = _HASHED if PREAMBLE in dialogue else _TURN
    dialogue = dialogue.replace(PREAMBLE, "", 1)
    first = pattern.search(dialogue)
    before = dialogue[: first.start()].strip() if first else ""
    if not first or (before and not before.startswith(KNOWLEDGE)):
        return []
    parts = pattern.split(dialogue[first.start() :])[1:]
    return [(role, content.strip()) for role, content in zip(parts[::2], parts[1::2], strict=True)]


def _alternating(said: Sequence[str]) -> Turns:
    """Assign unnamed speakers to turns, assuming that they alternate and that the human spoke last."""
    return [((ASSISTANT, HUMAN)[(len(said) - i) % 2], utterance.strip()) for i, utterance in enumerate(said)]


def marked(turns: Sequence[str]) -> Turns:
    """Read turns with marked speakers ("<|prompter|>Hello", "Human: Hello"), without the assistant's open turn.

    If no turn is marked, speakers are assumed to alternate, and the human to have spoken last.

    Raises:
        BadRowError: only some of the turns are marked.
    """
    matches = [_MARK.match(turn) for turn in turns]
    if not any(matches):
        return _alternating(turns)
    if not all(matches):
        raise BadRowError("only some of the turns name the speaker", repr(turns)[:60])
    marks = [match for match in matches if match]
    roles = [ROLES[(match[1] or match[2]).lower()] for match in marks]
    texts = [turn[match.end() :].strip() for turn, match in zip(turns, marks, strict=True)]
    dialogue = list(zip(roles, texts, strict=True))
    return dialogue[:-1] if dialogue[-1] == (ASSISTANT, "") else dialogue


def messages(value: Sequence[Row]) -> Turns:
    """Read turns from {"role", "content"} messages, whose content is text or a list of text parts."""
    turns = []
    for message in value:
        if not isinstance(message, dict):
            raise BadRowError("a message must be an object", f"not {message!r:.60}")
        role = text(message, "role")
        for key in ("tool_calls", "function_call"):
            if message.get(key):
                raise BadRowError(f"{key} cannot be read", ONLY)
        if role.lower() not in ROLES:
            raise BadRowError("unknown role", f"{role!r:.60} (known: {', '.join(ROLES)})")
        turns.append((ROLES[role.lower()], _content(message).strip()))
    return turns


def _content(message: Row) -> str:
    """Return the text of a message. Parts are joined without a separator, as in chat templates."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return text(message, "content")
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type", part) if isinstance(part, dict) else part
            raise BadRowError("a content part cannot be read", f"{kind!r:.60}; {ONLY}")
    return checked("".join(part["text"] for part in parts), "content")
