"""Encoding of an observation as messages of a chat, and its decoding.

The last message, from the user, holds the state and the legal actions. The earlier ones make the history:

    {"role": "user", "content": "+---------+\\n|R: | ...\\nActions:\\n- north\\n- pickup\\n"}

The state is everything before the last line "Actions:", byte for byte. Answers hold the reflection as
`reasoning_content`. The server keeps no episode, so a client of an agent that carries its reflections sends the
assistant's messages back with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from reflectrl.core.prompts.questions import state_text
from reflectrl.core.types import Observation
from reflectrl.serving.server.protocol import MOST, ChatRequest, Message, ObservedState, Refusal
from reflectrl.serving.server.questions import State

HEADING = re.compile(r"^Actions:[ \t]*\r?$", re.MULTILINE)
FORM = 'a line "Actions:" and then one line "- ACTION" for each legal action'


def observation_of(request: ChatRequest) -> Observation:
    """Return the observation in a request, for the agent.

    Raises:
        Refusal: the messages are not in this form, or an action is not one line of printable text.
    """
    if request.reflectrl is not None:
        observed = request.reflectrl
        return Observation(
            observed.history, observed.state, _checked(observed.actions, "reflectrl.actions"), observed.carried
        )
    return _observation(request.messages)


def state_of_json(value: Any) -> State:
    """Return a state that a client of a decision model sends: a string, an object or an array.

    It counts as an observation if it is an object with `state`, and perhaps `history` and `actions`, as programs send
    it, or a string that lists its actions, as the last message of a chat.
    """
    if isinstance(value, str):
        return state_of_messages([Message(role="user", content=value)], value)
    try:
        observed = ObservedState.model_validate(value)
        actions = _checked(observed.actions, "actions") if observed.actions else ()
    except (ValidationError, Refusal):
        return State(value, state_text(value))
    seen = Observation(observed.history, observed.state, actions, observed.carried)
    return State(value, seen.text, seen, tuple(observed.rewards))


def state_of_messages(messages: Sequence[Message], value: Any = None) -> State:
    """Return a state that is a conversation. It counts as an observation if the last message lists its actions.

    Args:
        value: the state as the request has it; None takes the text of all messages.
    """
    text = "".join(_ended(message.text) for message in messages)
    value = text if value is None else value
    try:
        return State(value, text, _observation(messages))
    except Refusal:
        return State(value, text)


def _observation(messages: Sequence[Message]) -> Observation:
    *earlier, last = messages
    where = f"messages.{len(earlier)}"
    if last.role != "user":
        raise Refusal(400, f"the last message must be the user's, with state and actions, not {last.role!r}",
                      "invalid_value", f"{where}.role")  # fmt: skip
    state, actions = _split(last.text, f"{where}.content")
    thoughts = [message.reasoning_content for message in earlier if message.role == "assistant"]
    carried = next((text for text in reversed(thoughts) if isinstance(text, str)), "")
    return Observation("".join(map(_past, earlier)), state, _checked(actions, f"{where}.content"), carried)


def messages_of(observation: Observation) -> list[dict[str, str]]:
    """Encode an observation as messages, for clients.

    A history becomes a system message, state and actions a user message. Decoding restores the observation if both
    texts end with a line break, as environments' texts do.
    """
    history = [{"role": "system", "content": observation.history}] if observation.history else []
    listed = "".join(f"- {action}\n" for action in observation.actions)
    return [*history, {"role": "user", "content": f"{_ended(observation.state)}Actions:\n{listed}"}]


def _past(message: Message) -> str:
    """Return an earlier message's part of the history.

    It is an action as environments write it, or the text without a list of actions.
    """
    if message.role == "assistant":
        return f"> {' '.join(message.text.split())}\n"
    heading = _heading(message.text) if message.role == "user" else None
    return _ended(message.text[: heading.start()] if heading else message.text)


def _split(text: str, where: str) -> tuple[str, list[str]]:
    heading = _heading(text)
    if heading is None:
        raise Refusal(400, f"the last message lists no actions: it must end with {FORM}", "invalid_value", where)
    lines = [line.strip() for line in text[heading.end() :].split("\n")]
    for line in filter(None, lines):
        if not line.startswith("- "):
            raise Refusal(400, f"{line[:60]!r} is not an action: a message ends with {FORM}", "invalid_value", where)
    return text[: heading.start()], [line[2:].strip() for line in lines if line]


def _heading(text: str) -> re.Match[str] | None:
    return next(iter(reversed(list(HEADING.finditer(text)))), None)


def _checked(actions: Sequence[str], where: str) -> tuple[str, ...]:
    if not 1 <= len(actions) <= MOST:
        raise Refusal(400, f"there must be 1 to {MOST} actions, not {len(actions)}", "invalid_value", where)
    for action in actions:
        if not (action.isprintable() and action.strip()):
            raise Refusal(400, f"an action is one line of printable text, not {action[:60]!r}", "invalid_value", where)
    return tuple(actions)


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
