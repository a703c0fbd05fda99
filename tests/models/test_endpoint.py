"""The client of chat models against a real chat-completions server on this machine."""

import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from reflectrl.models.endpoint import Endpoint, without_thinking
from reflectrl.types import UserError

KEY = "sk-secret-of-the-test"


def completion(text: str | None) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return json.dumps(
        {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    ).encode()


class ChatServer(ThreadingHTTPServer):
    """Answers each request with `reply(request)`: text, or (status, body), or (status, body, content type)."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = lambda request: "1"
        self.requests: list[dict] = []
        self.keys: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):  # a client that gave up is no news
        pass

    def script(self, *replies) -> None:
        """Answer the requests with these, one after the other."""
        left = list(replies)
        self.reply = lambda request: left.pop(0)


class Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.keys.append(self.headers["Authorization"])
        reply = (
            self.server.reply(request) if self.path == "/v1/chat/completions" else (404, b'{"error": "no such path"}')
        )
        status, body, *kind = (200, completion(reply)) if isinstance(reply, str | None) else reply
        self.send_response(status)
        self.send_header("Content-Type", *(kind or ["application/json"]))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("retry-after-ms", "1")  # so that retries do not slow the tests down
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ChatServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def endpoint(server, **settings) -> Endpoint:
    return Endpoint(server.url, "small-model", **{"api_key": KEY, "timeout": 5, "max_retries": 2, **settings})


def ask(endpoint: Endpoint) -> str:
    return endpoint.complete([{"role": "user", "content": "hello"}], max_tokens=7, temperature=0.5)


# ---- the client ----------------------------------------------------------------------------------------------------


def test_sends_the_conversation_and_returns_the_answer(server):
    server.script("good day")
    assert ask(endpoint(server)) == "good day"
    expected = {"model": "small-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7}
    assert server.requests == [{**expected, "temperature": 0.5}]
    assert server.keys == [f"Bearer {KEY}"]


def test_a_key_in_the_environment_stays_there(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-somebody-else")
    ask(endpoint(server, api_key=""))
    assert "sk-for-somebody-else" not in server.keys[0]


def test_a_model_that_says_nothing_is_an_empty_answer(server):
    server.script(None)
    assert ask(endpoint(server)) == ""


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_tried_again(server, status):
    server.script((status, b'{"error": {"message": "busy"}}'), "well now")
    assert ask(endpoint(server)) == "well now"
    assert len(server.requests) == 2


def refusal(endpoint: Endpoint) -> str:
    with pytest.raises(UserError) as caught:
        ask(endpoint)
    assert "\n" not in str(caught.value) and endpoint.base_url in str(caught.value)
    return str(caught.value)


def test_a_server_that_stays_broken_is_given_up_after_the_retries(server):
    server.reply = lambda request: (500, b'{"error": {"message": "out of\\nmemory"}}')
    assert "500" in refusal(endpoint(server))
    assert len(server.requests) == 3


def test_a_refused_key_is_reported_at_once_and_never_shown(server):
    server.reply = lambda request: (401, json.dumps({"error": {"message": f"bad key {KEY}"}}).encode())
    message = refusal(endpoint(server))
    assert "401" in message and "bad key" in message and KEY not in message
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, b'{"choices": [{"mess'), "cannot be read"),
        ((200, b"\xff\xfe\x00"), "cannot be read"),
        ((200, b"<html>hi</html>", "text/html"), "not a chat completion"),
        ((200, b'{"object": "list"}'), "not a chat completion"),
        ((200, b'{"choices": []}'), "not a chat completion"),
        ((200, b"[]"), "not a chat completion"),
        ((200, b'"3"'), "not a chat completion"),
        ((200, b'{"choices": [{"message": {"content": 3}}]}'), "not text"),
    ],
)
def test_an_answer_that_is_no_completion_is_one_clear_line(server, reply, words):
    server.reply = lambda request: reply
    assert words in refusal(endpoint(server, max_retries=0))


def test_a_wrong_path_is_one_clear_line(server):
    server.url = server.url.removesuffix("/v1")
    assert "404" in refusal(endpoint(server))


def test_a_server_that_never_answers_times_out(server):
    waiting = threading.Event()
    server.reply = lambda request: waiting.wait(5) and "late"
    began = time.monotonic()
    message = refusal(endpoint(server, timeout=0.2, max_retries=0))
    waiting.set()
    assert "no answer within 0.2 s" in message and time.monotonic() - began < 3


def test_nobody_at_the_address(server):
    with socket.socket() as free:  # bound but not listening, so the port answers nothing
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        assert "cannot connect" in refusal(Endpoint(url, "small-model", max_retries=0))


def test_an_address_needs_its_scheme():
    with pytest.raises(UserError, match="'localhost:8000/v1': the address must begin with http://"):
        Endpoint("localhost:8000/v1", "m")


def test_a_missing_client_library_is_explained():
    """In a fresh interpreter in which `openai` cannot be imported."""
    program = (
        "import sys; sys.modules['openai'] = None\n"
        "from reflectrl.models.endpoint import Endpoint, UserError\n"
        "try: Endpoint('http://127.0.0.1/v1', 'm')\n"
        "except UserError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown == "endpoints need the openai package: pip install reflectrl[endpoint]\n"


def test_thinking_is_cut_out():
    assert without_thinking("<think>a\nb</think>\n\nc <think>d</think> e") == "c  e"
    assert without_thinking("so 1 it is</think>3") == "3"
    assert without_thinking("<think>surely 1") == ""
