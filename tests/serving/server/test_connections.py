"""Clients that send half of something, nothing, or leave: none holds a server up, or gets a line out of it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.serving.server.conftest import Serve, Served
from tests.serving.server.served import Running

SECONDS, MOST = 2, 12
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def short(serve: Serve) -> Iterator[Served]:
    """A server with little time and few connections, which has said nothing in the end."""
    server = serve("--timeout", str(SECONDS), "--connections", str(MOST))
    yield server
    assert server.end(signal.SIGTERM) == (0, "stopped\n", "")


def connected(url: str, sent: bytes = b"") -> socket.socket:
    place = urlsplit(url)
    opened = socket.create_connection((place.hostname, place.port), timeout=30)
    opened.sendall(sent)
    return opened


def heard(opened: socket.socket) -> bytes:
    """What comes until the server closes; TimeoutError if it does not."""
    parts = []
    with opened:
        try:
            while part := opened.recv(2**16):
                parts.append(part)
        except ConnectionResetError:
            pass
    return b"".join(parts)


def is_healthy(url: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    return status == 200


UNFINISHED = {
    "nothing": (b"", b""),
    "half a line": (b"POST /v1/chat/comp", b"408"),
    "half a header": (POST + b"Auth", b"408"),
    "half a body": (POST + b"Content-Length: 9\r\n\r\n{", b"408"),
    "half a second request": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea", b"200"),
    "a body that nobody reads": (b"POST /v1/no HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{", b"404"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    "broken chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\nno number\r\n", b""),
}
"""What is sent, and the status of the answer, if there is one."""


def test_what_never_comes_to_its_end_is_ended(short: Served) -> None:
    opened = {name: connected(short.url, sent) for name, (sent, _) in UNFINISHED.items()}
    for name, (_, status) in UNFINISHED.items():
        said = heard(opened[name])
        assert status in said.partition(b"\r\n")[0] if status else not said, name
        if status in (b"400", b"408"):
            assert set(json.loads(said.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("sent", [POST + b"X-Slow: ", b"GET /v1/nowhere HTTP/1.1\r\nContent-Length: 9999\r\n\r\n"])
def test_who_sends_slowly_is_ended_as_well(short: Served, sent: bytes) -> None:
    deadline = time.monotonic() + SECONDS + 25
    with connected(short.url, sent) as opened, pytest.raises(OSError):
        while time.monotonic() < deadline:
            opened.sendall(b"a")
            time.sleep(0.05)


def test_who_reads_no_answer_is_ended(short: Served) -> None:
    """Answers of megabytes, of which the client takes none."""
    opened = connected(short.url)
    opened.settimeout(SECONDS + 25)
    with opened, pytest.raises(ConnectionError):
        while True:
            opened.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)


def test_connections_beyond_the_most_are_refused(short: Served) -> None:
    with ExitStack() as held:
        for _ in range(MOST):
            held.enter_context(connected(short.url))
        refused = heard(connected(short.url))
    assert refused.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1" in refused and b"12 connections" in refused
    deadline = time.monotonic() + 30
    while not is_healthy(short.url):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("resets", [False, True])
def test_who_leaves_while_sending_is_not_worth_a_line(short: Served, resets: bool) -> None:
    for sent in (POST + b"Content-Length: 1000\r\n\r\n{", POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc", POST):
        opened = connected(short.url, sent)
        time.sleep(0.1)
        if resets:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        opened.close()
    assert is_healthy(short.url)


def test_a_server_of_rollouts_ends_them_too(tmp_path: Path) -> None:
    server = Running(tmp_path, 0, "--timeout", str(SECONDS), "--connections", "2")
    try:
        begin = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connected(server.url, begin + b"Content-Length: 1000\r\n\r\n{").close()
        assert b"408" in heard(connected(server.url, begin + b"Auth")).partition(b"\r\n")[0]
        with connected(server.url), connected(server.url):
            assert b"503" in heard(connected(server.url)).partition(b"\r\n")[0]
    finally:
        server.process.terminate()
        assert server.process.communicate(timeout=60) == ("stopped\n", "")
