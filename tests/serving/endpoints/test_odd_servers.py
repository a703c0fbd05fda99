"""A drill: real servers of many odd kinds, each of which ends as it should, from the command line and in its cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import without_thinking
from reflectrl.serving.endpoints.client import Endpoint
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.journal import Journal
from reflectrl.serving.remote.client import Servers
from reflectrl.serving.remote.config import RolloutsConfig
from tests.serving.endpoints.scripted import serving

MOST = 300
"""Tokens that an answer may have; an attempt that nobody counted costs as many."""


def body(content: Any, finish: str = "stop", usage: dict[str, Any] | None = None, **more: Any) -> bytes:
    """A completion with a message of any shape."""
    message = {"role": "assistant", "content": content, **more}
    answer: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return json.dumps(answer if usage is None else {**answer, "usage": usage}).encode()


def used(read: float, written: float, total: float, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": total, **more}


def failed(code: Any, message: Any = "Provider returned error: quota of your plan is used up", **more: Any) -> bytes:
    """An error in the body of a success."""
    return json.dumps({"choices": None, "usage": None, "error": {"message": message, "code": code, **more}}).encode()


def events(*texts: str, reason: str | None = "stop") -> bytes:
    """The events of a server that streams, with a comment and the model's reasoning among them."""
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "left?"},
        *({"content": text} for text in texts),
    ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    lines = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)
    return f": hello\n\n{lines}data: [DONE]\n\n".encode()


def without_system(request: dict[str, Any]) -> Any:
    """Refuse the system's role."""
    if any(message["role"] == "system" for message in request["messages"]):
        return 400, b'{"error": {"message": "Only user and assistant roles are supported!; System role not supported"}}'
    return body("right")


def without_empties(request: dict[str, Any]) -> Any:
    """Say nothing to the first question; refuse empty messages, and two of one role in a row."""
    messages = request["messages"]
    if not all(message["content"] for message in messages):
        return 400, b'{"error": {"message": "messages: text content blocks must be non-empty"}}'
    if any(one["role"] == other["role"] for one, other in pairwise(messages)):
        return 400, b'{"error": {"message": "roles must alternate"}}'
    return body("right" if "not one of the legal" in messages[-1]["content"] else "")


HARMONY = (
    "<|channel|>analysis<|message|>Left or right? Not left.<|end|><|start|>assistant<|channel|>final<|message|>right"
)
DEEP = b'{"choices": [{"message": {"content": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}]}"
DETAIL = {"detail": [{"loc": ["body", "max_tokens"], "msg": "field not supported"}]}


@dataclass(frozen=True)
class Kind:
    """A kind of server, and how a question to it ends.

    Attributes:
        reply: what it answers to every request, or a function of the request.
        says: what is shown: on stdout where there is an action, on stderr where not.
        requests: that it receives of one question, with one retry.
        written: tokens of the answer that are charged in all.
        query: further keys of the player.
        note: what is remarked on stderr beside the answer.
    """

    reply: Any
    says: str = "big: right"
    requests: int = 1
    written: int = MOST
    query: str = ""
    note: str = ""


KINDS = {
    "error 429 as a success": Kind(failed(429), "error 429: Provider returned error: quota", 2, 0),
    "error 502 as a success": Kind(failed("502", "upstream died"), "error 502: upstream died", 2, 0),
    "error 404 as a success": Kind(failed(404, "no such model"), "error 404: no such model", 1, 0),
    "error by a word": Kind(failed("rate_limit_exceeded", "slow down"), "error 429: slow down", 2, 0),
    "error without a code": Kind(failed(None, "it broke"), "the server answers with an error: it broke", 1, 0),
    "error of old servers": Kind(
        b'{"object": "error", "message": "too long", "code": 400}', "error 400: too long", 1, 0
    ),
    "error in a choice": Kind(
        b'{"choices": [{"message": {"content": "ri"}, "finish_reason": "error", "error": {"code": 503, "message":'
        b' "provider left"}}]}',
        "error 503: provider left",
        2,
        0,
    ),
    "FastAPI's detail": Kind(
        (422, json.dumps(DETAIL).encode()), "error 422: body.max_tokens: field not supported", 1, 0
    ),
    "reasoning beside completion": Kind(body("right", usage=used(32, 5, 1037)), written=1005),
    "usage of zeros": Kind(body("right", usage=used(0, 0, 0))),
    "usage of floats": Kind(body("right", usage=used(30.0, 4.0, 34.0)), written=4),
    "usage of nonsense": Kind(body("right", usage=used(1e308, -4, 10**400))),
    "no usage": Kind(body("right")),
    "cut off in its reasoning": Kind(
        body(None, "length", used(30, MOST, 330), reasoning_content="Let me think"),
        "cut: ",
        written=MOST,
        note=f"cut off at max_tokens = {MOST}",
    ),
    "cut off in a thought": Kind(
        body("<think>It could be right", "length", used(30, 10, 40)),
        "cut: ",
        written=10,
        note="cut off at max_tokens",
    ),
    "cut off in its action": Kind(body("I think it is ri", "length"), "cut: ", note=f"cut off at max_tokens = {MOST}"),
    "cut off after its action": Kind(body("Action: right\nObservation: You", "length"), note="cut off at max_tokens"),
    "Gemini's limit": Kind(body("I think", "MAX_TOKENS"), "cut: ", note="cut off at max_tokens"),
    "withheld": Kind(body("", "content_filter", used(30, 0, 30)), "filtered: ", written=0, note="content_filter"),
    "withheld by Gemini": Kind(body(None, "SAFETY"), "filtered: ", note="withheld an answer (SAFETY)"),
    "a tool in place of text": Kind(body(None, "tool_calls", tool_calls=[]), "illegal: ", note="called a tool"),
    "refusal": Kind(body(None, refusal="I can't help"), "declined: ", note="the model declined to answer"),
    "refusal as a reason": Kind(body("", "refusal"), "declined: ", note="the model declined to answer"),
    "a prompt beyond the context": Kind(
        (400, b'{"error": {"message": "This model\'s maximum context length is 256 tokens.", "code": 400}}'),
        "lost, since the server refused a question, after 1 step",
        written=0,
        note="maximum context length is 256 tokens; a smaller `history`",
    ),
    "Azure's filter": Kind(
        (400, b'{"error": {"message": "The response was filtered", "code": "content_filter", "status": 400}}'),
        "lost, since the server refused a question",
        written=0,
        note="The response was filtered; the episode counts as lost",
    ),
    "a filter's error as a success": Kind(
        failed(400, "input flagged by moderation"), "refused: ", written=0, note="flagged by moderation"
    ),
    "a refused question, to end all": Kind(
        (413, b"{}"), 'with refused = "lost" or "unread", the others go on', 1, 0, "&refused=stop"
    ),
    "events in place of an answer": Kind((200, events("ri", "ght"), "text/event-stream")),
    "events with a filtered end": Kind(
        (200, events(reason="content_filter"), "text/event-stream"), "filtered: ", note="content_filter"
    ),
    "events with an error": Kind(
        (200, b'data: {"error": {"message": "it broke", "code": 503}}\n\n', "text/event-stream"),
        "error 503: it broke",
        2,
        0,
    ),
    "events that break off": Kind(
        (200, events("ri", reason=None).removesuffix(b"data: [DONE]\n\n"), "text/event-stream"),
        "the stream of the answer broke off",
        2,
        2 * MOST,
    ),
    "an answer before the mark of a stream's end": Kind((200, body("right") + b"\ndata: [DONE]\n\n", "text/plain")),
    "lines of JSON": Kind((200, events("ri", "ght").replace(b"data: ", b"").replace(b"[DONE]", b""), "text/plain")),
    "another model": Kind(
        json.dumps({**json.loads(body("right")), "model": "tiny-0.5b-q4"}).encode(),
        note="another model, 'tiny-0.5b-q4'",
    ),
    "parts": Kind(
        body([{"type": "thinking", "thinking": [{"type": "text", "text": "left?"}]}, {"type": "text", "text": "right"}])
    ),
    "harmony": Kind(body(HARMONY)),
    "harmony without its markers": Kind(body("analysisLeft or right? Not left.assistantfinalright")),
    "[THINK]": Kind(body("[THINK]Left? Action: left would hit the wall.[/THINK]right")),
    "<thinking>": Kind(body("<thinking>left, or what?</thinking>\nright")),
    "half a character": Kind(b'{"choices": [{"message": {"content": "\\ud83d right"}}]}'),
    "no system role": Kind(without_system, "System role not supported; fold_system = true does without", 1, 0),
    "no system role, folded": Kind(without_system, query="&fold_system=true"),
    "no empty messages": Kind(without_empties),
    "no empty messages, reflecting first": Kind(without_empties, query="&style=react"),
    "nested without end": Kind(DEEP, "the answer cannot be read (it is nested too deep)", 2, 2 * MOST),
    "an error nested without end": Kind((500, DEEP), "error 500", 2, 0),
    "choices that are no list": Kind(b'{"choices": {"a": 1}}', "not a chat completion", 2, 2 * MOST),
    "events": Kind((200, b"data: {}\n\ndata: [DONE]\n\n", "text/event-stream"), "not a chat completion", 2, 2 * MOST),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    pytest.importorskip("openai")
    return KINDS[request.param]


def replies(kind: Kind) -> Callable[[dict[str, Any]], Any]:
    return kind.reply if callable(kind.reply) else lambda request: kind.reply


def test_a_player_behind_an_odd_server_acts_or_ends_with_one_line(kind: Kind, capfd: Any) -> None:
    with serving() as server:
        server.reply = replies(kind)
        url = f"{server.url}?model=big&retries=1&max_tokens={MOST}{kind.query}"
        code = main(["play", "corridor", "--player", url, "--env.horizon", "1"])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    if code == 0:
        assert kind.says in out
        assert (kind.note in err and err.count("\n") == 1) if kind.note else not err
    else:
        assert code == 2 and kind.says in err and err.count("\n") == 1
        assert len(server.requests) == kind.requests


def test_an_odd_server_is_paid_what_it_has_computed(kind: Kind) -> None:
    journal = Journal()
    with serving() as server:
        server.reply = replies(kind)
        folds = "fold_system" in kind.query
        config = EndpointConfig(server.url, "big", retries=1, price_out=10.0, fold_system=folds)
        talk = [{"role": "system", "content": "You steer a taxi."}, {"role": "user", "content": "Which way do we go?"}]
        with suppress(UserError):  # what it says is checked above
            Endpoint(config, journal).complete(talk, MOST, 0.0)
    assert journal.spent.requests == len(server.requests) == kind.requests
    assert journal.spent.tokens_out == kind.written
    assert journal.spent.money == pytest.approx(kind.written * 10e-6)


def test_an_error_that_passes_is_tried_again_and_costs_nothing() -> None:
    pytest.importorskip("openai")
    journal = Journal()
    with serving() as server:
        server.script(failed(429), failed(503), body("right", usage=used(30, 4, 34)))
        asked = Endpoint(EndpointConfig(server.url, "big", retries=2), journal)
        assert asked.complete([{"role": "user", "content": "Which way do we go?"}], MOST, 0.0) == "right"
    assert (journal.spent.requests, journal.spent.tokens_in, journal.spent.tokens_out) == (3, 30, 4)


def test_a_thought_is_not_sent_back() -> None:
    pytest.importorskip("openai")

    def reply(request: dict[str, Any]) -> str:
        return "right" if len(request["messages"]) > 2 else f"{HARMONY} away"

    with serving() as server:
        server.reply = reply
        assert main(["play", "corridor", "--player", f"{server.url}?model=big&style=react", "--env.horizon", "1"]) == 0
        [said] = [one["content"] for one in server.requests[-1]["messages"] if one["role"] == "assistant"]
    assert said == "right away"


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        (HARMONY, "right"),
        ("<|channel|>analysis<|message|>It could be", ""),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", "{}"),
        ("[THINK]a[/THINK] b", "b"),
        ("[THINK]a", ""),
        ("a[/THINK]b", "b"),
        ("<thought>a</thought>b<reasoning>c</reasoning>", "b"),
        ("<think>a</thinking>b</think>c", "c"),
        ("◁think▷a◁/think▷b", "b"),
        ("[think] of it", "[think] of it"),
        ("analysis of the map", "analysis of the map"),
    ],
)
def test_every_mark_of_thinking_is_known(answer: str, rest: str) -> None:
    assert without_thinking(answer) == rest


def test_many_marks_take_no_time() -> None:
    """A server may answer megabytes."""
    for piece in ("<think>", "<|channel|>a", "<|channel|>a<|message|>", "</think>", "\n"):
        assert without_thinking(piece * 300_000) == ""


@pytest.mark.parametrize(
    ("reply", "says", "requests"),
    [
        (failed(429), "error 429 from /completions: Provider returned error: quota", 2),
        (failed(404, "no such model"), "error 404 from /completions: no such model", 1),
        ((422, json.dumps(DETAIL).encode()), "error 422 from /completions: body.max_tokens: field not supported", 1),
        (DEEP, "the answer cannot be read (it is nested too deep)", 1),
    ],
)
def test_servers_of_rollouts_may_be_as_odd(reply: Any, says: str, requests: int) -> None:
    pytest.importorskip("openai")
    with serving() as server:
        server.reply = lambda request: reply
        servers = Servers(RolloutsConfig((server.url,), retries=1))
        with pytest.raises(UserError) as caught:
            servers.complete([{"prompt": [[1, 2]], "max_tokens": 1}])
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert len(server.requests) == requests
