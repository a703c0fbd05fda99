"""How observations travel in messages; what cannot be read is refused, and nothing else ever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectrl.core.types import Observation
from reflectrl.serving.server.observations import messages_of, observation_of
from reflectrl.serving.server.protocol import Refusal, read_request

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
CHARACTERS = st.characters(exclude_categories=("Cs",))
ENDED = st.text(CHARACTERS).map(lambda text: f"{text}\n" if text else "")
ACTIONS = st.lists(
    st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1, max_size=30).filter(
        lambda text: text == text.strip() != ""
    ),
    min_size=1, max_size=9,
)  # fmt: skip


def read(**body: Any) -> Observation:
    return observation_of(read_request(json.dumps({"model": "m", **body}).encode()))


@SLOW
@given(ENDED, ENDED, ACTIONS)
def test_an_observation_comes_back_as_it_was(history: str, state: str, actions: list[str]) -> None:
    seen = Observation(history, state, tuple(actions))
    assert read(messages=messages_of(seen)) == seen


@SLOW
@given(st.text(CHARACTERS), st.text(CHARACTERS), ACTIONS)
def test_a_programs_observation_is_taken_as_it_is(history: str, state: str, actions: list[str]) -> None:
    told = {"history": history, "state": state, "actions": actions}
    message = {"role": "user", "content": "not read"}
    assert read(messages=[message], reflectrl=told) == Observation(history, state, tuple(actions))


def test_a_conversation_makes_the_history_that_environments_write() -> None:
    messages = [
        {"role": "system", "content": "Find the key."},
        {"role": "user", "content": "A hall.\nActions:\n- open door\n- wait\n"},
        {"role": "assistant", "content": "open door", "reasoning_content": "It may be behind."},
        {"role": "user", "content": [{"type": "text", "text": part} for part in ("A garden.\n", "Actions:\n- dig")]},
    ]
    history = "Find the key.\nA hall.\n> open door\n"
    assert read(messages=messages) == Observation(history, "A garden.\n", ("dig",), "It may be behind.")


def test_the_last_heading_counts() -> None:
    text = "Actions:\nare listed below\nActions:\n\n-  go left \n"
    assert read(messages=[{"role": "user", "content": text}]) == Observation(
        "", "Actions:\nare listed below\n", ("go left",)
    )


USER = {"role": "user", "content": "Here.\nActions:\n- go\n"}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user", "content": "Where to?"}]}, "messages.0.content", "lists no actions"),
        ({"messages": [{"role": "user", "content": "Actions:\nnorth"}]}, "messages.0.content", "is not an action"),
        ({"messages": [{"role": "user", "content": "Actions:\n"}]}, "messages.0.content", "1 to 1000 actions, not 0"),
        ({"messages": [{"role": "user", "content": "Actions:\n- \x1b[2J"}]}, "messages.0.content", "printable"),
        ({"messages": [USER, {"role": "assistant", "content": "go"}]}, "messages.1.role", "must be the user's"),
        ({"messages": [{"role": "tool", "content": "go"}]}, "messages.0.role", "system"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content", "text"),
        ({"messages": [USER], "reflectrl": {"state": "", "actions": ["a\nb"]}}, "reflectrl.actions", "one line"),
        ({"messages": [USER], "reflectrl": {"state": "", "actions": []}}, "reflectrl.actions", "at least 1"),
        ({"messages": [USER], "reflectrl": {"actions": ["a"]}}, "reflectrl.state", "required"),
        ({"messages": [USER], "temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools", "at most 0"),
        ({"messages": [USER], "stop": ["\n"]}, "stop", "at most 0"),
        ({"messages": [USER], "logprobs": True}, "logprobs", "False"),
        ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format.type", "'text'"),
        ({"messages": [USER], "tool_choice": "required"}, "tool_choice", "'none' or 'auto'"),
        ({"messages": [USER], "suffix": "x"}, "suffix", "unknown or unsupported"),
        ({"messages": [USER], "n": 2}, "n", "1"),
        ({"messages": [USER], "stream": "yes"}, "stream", "boolean"),
        ({"messages": [USER], "temperature": 3}, "temperature", "less than or equal to 2"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_field(body: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(Refusal) as caught:
        read(**body)
    told = caught.value.body()["error"]
    assert caught.value.status == 400 and said in told["message"]
    assert told["param"].startswith(param) and told["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "field",
    [
        {"tools": None}, {"tools": []}, {"tool_choice": "none"}, {"functions": []}, {"stop": None}, {"stop": []},
        {"logprobs": False}, {"top_logprobs": 0}, {"logit_bias": {}}, {"response_format": {"type": "text"}},
        {"service_tier": "auto"}, {"user": "me"}, {"metadata": {"a": "b"}}, {"store": False}, {"n": 1}, {"seed": 7},
        {"parallel_tool_calls": True}, {"stream_options": None}, {"modalities": ["text"]}, {"audio": None},
        {"verbosity": "low"}, {"prompt_cache_key": "k"}, {"prediction": None}, {"web_search_options": None},
    ],
    ids=lambda field: next(iter(field)),
)  # fmt: skip
def test_what_asks_for_nothing_is_no_mistake(field: dict[str, Any]) -> None:
    assert read(messages=[USER], **field) == read(messages=[USER])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["model", "messages", "reflectrl", "stream", "n", "temperature", "seed", "user"])


@SLOW
@given(
    st.binary() | JSON.map(json.dumps).map(str.encode) | st.dictionaries(FIELDS, JSON).map(json.dumps).map(str.encode)
)
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        observation_of(read_request(body))
    except Refusal as refusal:
        assert refusal.status == 400 and refusal.body()["error"]["message"].isprintable()
