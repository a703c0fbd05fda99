"""Servers of models in training, in processes of their own, and one between that is stingy with what they answer."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forks

Change = Callable[[dict[str, Any]], None]
"""Alters the answer to a request for completions."""


class Running:
    """A process of `reflectrl serve-rollouts`.

    Attributes:
        url: where its API begins.
    """

    def __init__(self, root: Path, port: int = 0, *options: str) -> None:
        words = ["serve-rollouts", str(root), "--port", str(port), "--threads", "1", *options]
        pipe = subprocess.PIPE
        self.process = forks().start(["-m", "reflectrl", *words], stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line.startswith(f"serving rollouts of {root} at http://"), line + self.process.stderr.read()
        self.url = line.split(" at ")[1].split()[0]

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.rpartition(":")[2].removesuffix("/v1"))

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.communicate()

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def models(self) -> list[str]:
        """Names of what is loaded."""
        return [model["id"] for model in self.ask("/models")[1]["data"]]


@contextmanager
def stingy(server: Running, change: Change = lambda choice: None, without: Sequence[str] = ()) -> Iterator[str]:
    """A server that hands requests on to another one, and alters its completions; gives its address.

    Args:
        without: fields of requests that it does not know and passes over.
    """

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            if body is not None:
                asked = {name: value for name, value in json.loads(body).items() if name not in without}
                body = json.dumps(asked).encode()
            status, found = server.ask(self.path.removeprefix("/v1"), body)
            if self.path.endswith("/completions") and status == 200:
                for choice in found["choices"]:
                    change(choice)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as between:
        thread = threading.Thread(target=between.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{between.server_port}/v1"
        finally:
            between.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder below which the server loads weights."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def running(root: Path) -> Iterator[Running]:
    """A server that all tests may ask."""
    pytest.importorskip("openai")
    server = Running(root)
    yield server
    server.kill()
