"""A chat-completions server on this machine that answers from a script, badly where it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def completion(text: str | None, usage: tuple[int, int] | None = None) -> bytes:
    """A chat completion as servers send it."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return json.dumps(body).encode()


class ChatServer(ThreadingHTTPServer):
    """Answers each request with `reply(request)`: text, bytes of a whole body, (status, body), (status, body, content
    type), or a function that is given the handler and does what it likes.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.reply: Callable[[dict[str, Any]], Any] = lambda request: "1"
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.headers: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:  # a client that gave up is no news
        pass

    def script(self, *replies: Any) -> None:
        """Answer the requests with these, one after the other."""
        left = list(replies)
        self.reply = lambda request: left.pop(0)


class Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.paths.append(self.path)
        self.server.keys.append(self.headers["Authorization"])
        self.server.headers.append(self.headers)
        known = self.path.partition("?")[0].endswith("/completions") and "/v1/" in self.path
        reply = self.server.reply(request) if known else (404, b'{"error": "no such path"}')
        if callable(reply):
            reply(self)
            return
        reply = completion(reply) if isinstance(reply, str | None) else reply
        status, body, *kind = (200, reply) if isinstance(reply, bytes) else reply
        self.send_response(status)
        self.send_header("Content-Type", *(kind or ["application/json"]))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("retry-after-ms", "1")  # so that retries do not slow the tests down
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def drop(handler: Any) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def truncate(handler: Any) -> None:
    """Promise more than is sent."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


@contextmanager
def serving(port: int = 0) -> Iterator[ChatServer]:
    """A server while the block runs."""
    with ChatServer(port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def interrupted(
    run: Callable[..., int], said: Callable[[dict[str, Any]], str], questions: int, capsys: Any
) -> list[dict[str, Any]]:
    """Run with a budget of three requests, with a server that dies before the last four questions, and to the end.

    Args:
        run: takes the server's address and further words of the command; returns the exit status.
        said: the server's answer to a request.
        questions: number of requests of an undisturbed run.

    Returns:
        The requests that were answered.
    """
    answered = list[dict[str, Any]]()

    def answer(request: dict[str, Any]) -> str:
        answered.append(request)
        return said(request)

    with ChatServer() as first:
        running = threading.Thread(target=first.serve_forever, kwargs={"poll_interval": 0.01})
        running.start()
        first.reply = answer
        assert run(first.url, "--endpoint.max_requests", "3") == 2
        error = capsys.readouterr().err
        assert "the budget is spent (max_requests = 3)" in error and error.count("\n") == 1 and len(answered) == 3

        def dying(request: dict[str, Any]) -> Any:
            if len(answered) < questions - 4:
                return answer(request)
            threading.Thread(target=first.shutdown).start()
            return drop

        first.reply = dying
        assert run(first.url) == 2
        error = capsys.readouterr().err
        assert f"endpoint {first.url} (model m): " in error and error.count("\n") == 1
        running.join()
        port = first.server_port
    with serving(port) as second:
        second.reply = answer
        assert run(second.url) == 0
    return answered
