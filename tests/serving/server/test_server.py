"""A real server process, asked by OpenAI's client, by bare sockets and by a fuzzer."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import reflectrl
from reflectrl.cli import main
from reflectrl.core.types import Observation
from reflectrl.serving.server.cli import bound
from reflectrl.serving.server.observations import messages_of
from tests.serving.server.conftest import Serve, Served

openai = pytest.importorskip("openai")

NAME, TOKEN = "tiny:sft", "a-token-of-ours"
SEEN = Observation("", "You are at 2, the goal is at 0.\n", ("left", "right", "stay"))
BODY: dict[str, Any] = {"model": NAME, "messages": messages_of(SEEN)}


def client(server: Served, kind: Any = openai.OpenAI, **options: Any) -> Any:
    return kind(base_url=f"{server.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 120.0, **options})


def ask(server: Served, path: str = "/v1/chat/completions", body: bytes | None = None, **headers: str) -> Any:
    """Status, headers and JSON of an answer to a request as it stands."""
    import http.client

    with_body = {"Content-Type": "application/json"} if body is not None else {}
    sent = with_body | {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    connection.request("GET" if body is None else "POST", path, body, sent)
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), json.loads(answer.read())
    connection.close()
    return found


def half(server: Served) -> socket.socket:
    """A request whose body does not come."""
    place = urlsplit(server.url)
    opened = socket.create_connection((place.hostname, place.port), timeout=120)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    opened.sendall(f"{head}Authorization: Bearer {TOKEN}\r\nContent-Length: 9\r\n\r\n".encode())
    return opened


@pytest.fixture(scope="module")
def agent(trained: Path) -> reflectrl.api.Agent:
    return reflectrl.load_agent(trained, "sft")


# ---- OpenAI's client -------------------------------------------------------------------------------------------------


def test_an_episode_through_the_server_is_that_of_the_agent(server: Served, agent: Any) -> None:
    env, api = reflectrl.make_env("corridor"), client(server)
    env.reset()
    agent.reset()
    for _ in range(6):
        seen = env.observe()
        told = {"history": seen.history, "state": seen.state, "actions": list(seen.actions)}
        answer = api.chat.completions.create(**BODY, extra_body={"reflectrl": told}).choices[0]
        action = agent.act(seen)
        assert answer.message.content == seen.actions[action] and answer.reflectrl["action"] == action
        assert answer.message.reasoning_content == agent.reflection
        assert answer.reflectrl["probabilities"] == pytest.approx(list(agent.probabilities.values()), abs=1e-5)
        env.step(action)
        if env.done:
            break


def test_no_answer_waits_for_an_acknowledgement() -> None:
    """Head and body of an answer are sent apart; with Nagle's algorithm, the second would wait 40 ms."""
    with bound("127.0.0.1", 0, False) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_models_are_listed_and_found(server: Served) -> None:
    api = client(server)
    [model] = api.models.list().data
    assert model.id == NAME == api.models.retrieve(NAME).id
    assert model.reflectrl == {"arm": "sft", "environment": "corridor", "reflects": True}
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'; this is 'tiny:sft'"):
        api.models.retrieve("gpt-4")


def test_a_streamed_answer_says_the_same(server: Served) -> None:
    api = client(server)
    whole = api.chat.completions.create(**BODY)
    chunks = list(api.chat.completions.create(**BODY, stream=True, stream_options={"include_usage": True}))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == whole.choices[0].message.reasoning_content
    assert deltas[0].role == "assistant" and chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == whole.usage and len({chunk.id for chunk in chunks}) == 1
    used = whole.usage
    assert used.completion_tokens == used.completion_tokens_details.reasoning_tokens + 1
    assert used.prompt_tokens > len(SEEN.actions) and used.total_tokens == used.prompt_tokens + used.completion_tokens


def test_temperature_draws_by_the_seed(server: Served) -> None:
    api = client(server)

    def drawn(seed: int, temperature: float = 2.0) -> str:
        made = api.chat.completions.create(**BODY, temperature=temperature, seed=seed)
        return str(made.choices[0].message.content)

    found = [drawn(seed) for seed in range(12)]
    assert len(set(found)) > 1 and found == [drawn(seed) for seed in range(12)] and set(found) <= set(SEEN.actions)
    assert drawn(0, 5e-324) == drawn(0, 0.0)  # the smallest number above 0


def test_sixty_at_once_are_answered_as_each_alone(server: Served) -> None:
    states = [f"You are at {place}, the goal is at 0.\n" for place in range(1, 7)]
    bodies = [{**BODY, "messages": messages_of(Observation("", state, SEEN.actions))} for state in states]
    alone = [client(server).chat.completions.create(**body).choices[0].message for body in bodies]

    async def all_at_once() -> list[Any]:
        async with client(server, openai.AsyncOpenAI) as api:
            made = [api.chat.completions.create(**bodies[i % 6], stream=i % 5 == 0) for i in range(60)]
            answers = await asyncio.gather(*made)
            return [[chunk async for chunk in one] if i % 5 == 0 else one for i, one in enumerate(answers)]

    for i, answer in enumerate(asyncio.run(all_at_once())):
        if i % 5 == 0:
            said = "".join(choice.delta.content or "" for chunk in answer for choice in chunk.choices)
            assert said == alone[i % 6].content
        else:
            assert answer.choices[0].message.content == alone[i % 6].content
            assert answer.choices[0].message.reasoning_content == alone[i % 6].reasoning_content


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, "invalid_json"),
        (b"\xff\xfe", {}, 400, "invalid_json"),
        (b'{"model": "m", "seed": NaN, "messages": []}', {}, 400, None),
        (json.dumps({**BODY, "model": "gpt-4"}).encode(), {}, 404, "model_not_found"),
        (json.dumps({**BODY, "colour": "red"}).encode(), {}, 400, "unknown_field"),
        (json.dumps(BODY).encode(), {"Content_Type": "text/plain"}, 415, "unsupported_media_type"),
        (json.dumps(BODY).encode(), {"Host": "evil.example"}, 403, "host"),
        (json.dumps({**BODY, "messages": [{"role": "user", "content": "x " * 3000 + "\nActions:\n- go"}]}).encode(), {},
         400, "context_length_exceeded"),
        (json.dumps({**BODY, "messages": [{"role": "user", "content": "x " * 300 + "\nActions:\n- go"}]}).encode(), {},
         400, "context_length_exceeded"),
        (b" " * (10 * 2**20), {}, 413, "body_too_large"),
        (json.dumps({**BODY, "reflectrl": {"state": "", "actions": [f"a{i}" for i in range(999)]}}).encode(), {}, 400,
         "not_answerable"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Served, body: bytes, headers: dict[str, str], status: int, code: str | None) -> None:
    found, _, told = ask(server, body=body, **headers)
    assert found == status, told
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert code is None or told["error"]["code"] == code
    assert ask(server, "/health")[0] == 200


def test_a_path_or_method_that_is_not_there(server: Served) -> None:
    assert ask(server, "/v1/embeddings", b"{}")[0] == 404
    status, headers, told = ask(server, "/v1/models", b"{}")
    assert (status, told["error"]["type"]) == (405, "invalid_request_error")
    assert set(headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_one_that_does_not_fit_spoils_no_other(server: Served) -> None:
    long = {**BODY, "messages": messages_of(Observation("", "x " * 300 + "\n", SEEN.actions))}

    async def both() -> list[Any]:
        async with client(server, openai.AsyncOpenAI) as api:
            made = [api.chat.completions.create(**(long if i % 4 == 0 else BODY)) for i in range(16)]
            return await asyncio.gather(*made, return_exceptions=True)

    for i, answer in enumerate(asyncio.run(both())):
        assert isinstance(answer, openai.BadRequestError) == (i % 4 == 0), answer


def test_too_many_at_once_are_told_to_come_again(serve: Serve) -> None:
    """With a token, a short time for bodies, and two places; then the end by SIGTERM."""
    server = serve("--token-env", "OURS", "--timeout", "6", "--concurrent", "2", "--host", "0.0.0.0", OURS=TOKEN)
    local = Served(server.process, server.url.replace("0.0.0.0", "127.0.0.1"))
    with pytest.raises(openai.AuthenticationError):
        client(local).chat.completions.create(**BODY)
    assert ask(local, "/v1/models", Authorization="Basic x")[1]["www-authenticate"] == "Bearer"
    assert ask(local, "/health")[0] == 200
    api = client(local, api_key=TOKEN)
    assert api.models.list().data[0].id == NAME
    with half(local) as one, half(local) as two:
        time.sleep(0.5)
        with pytest.raises(openai.RateLimitError) as caught:
            api.chat.completions.create(**BODY)
        assert caught.value.response.headers["retry-after"] == "1"
        for opened in (one, two):
            assert b"408" in opened.recv(4096).split(b"\r\n")[0]
    code, out, error = local.end(signal.SIGTERM)
    assert (code, out, error) == (0, "stopped\n", "")


def test_ctrl_c_waits_for_what_is_being_answered(serve: Serve) -> None:
    server = serve()
    place = urlsplit(server.url)
    body = json.dumps(BODY).encode()
    with socket.create_connection((place.hostname, place.port), timeout=120) as opened:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        opened.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        time.sleep(0.5)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        with pytest.raises(OSError):
            socket.create_connection((place.hostname, place.port), timeout=5)
        opened.sendall(body[10:])
        assert opened.recv(65536).startswith(b"HTTP/1.1 200 OK")
    out, error = server.process.communicate(timeout=120)
    assert (server.process.returncode, out, error) == (0, "stopped\n", "")


def test_the_published_example_of_a_request_is_answered(server: Served) -> None:
    shown = ask(server, "/openapi.json")[2]["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    [example] = shown["content"]["application/json"]["examples"].values()
    status, _, answer = ask(server, body=json.dumps(example["value"]).encode())
    assert status == 200
    assert answer["choices"][0]["message"]["content"] in ("take key", "go to kitchen")


def test_a_fuzzer_finds_no_answer_that_the_schema_does_not_have(server: Served, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    words = ["run", f"{server.url}/openapi.json", "--checks", checks, "--max-examples", "25", "--seed", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *words, "--request-timeout", "60"],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "✅ Examples" in done.stdout  # the example of a request, which is nearly all that a fuzzer cannot invent
    assert "createChatCompletion" in ask(server, "/openapi.json")[2]["paths"]["/v1/chat/completions"]["post"].values()


# ---- what is refused before anything is loaded -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: others could reach it; name the variable that holds a token"),
        (["--host", ""], "others could reach it"),
        (["--host", "example.invalid"], "others could reach it"),
        (["--token-env", "NO_SUCH"], "--token-env NO_SUCH: it must hold a token of 8 or more"),
        (["--port", "70000"], "--port must be from 0 to 65535, not 70000"),
        (["--timeout", "0"], "--timeout above 0"),
        (["--prot", "1"], "unknown option '--prot' (did you mean '--port'?)"),
        (["--port", "BUSY"], "cannot listen there: Address already in use"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        words = [word.replace("BUSY", str(busy.getsockname()[1])) for word in options]
        assert main(["serve", "no-such-run", *words]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and said in error


@pytest.mark.parametrize(
    ("words", "said"),
    [(["no-such-run"], "no-such-run is not a run folder"), (["RUN", "--arm", "random"], "plays without a model"),
     (["RUN", "--arm", "reflect-rl"], "is not trained yet"), (["RUN", "--arm", "sfft"], "did you mean 'sft'")],
)  # fmt: skip
def test_what_cannot_be_served(capsys: pytest.CaptureFixture[str], trained: Path, words: list[str], said: str) -> None:
    assert main(["serve", *(str(trained) if word == "RUN" else word for word in words), "--port", "0"]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1) and said in error
