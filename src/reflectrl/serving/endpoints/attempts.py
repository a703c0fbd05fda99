"""Limits on each attempt to reach a server (the budget, a time, and a size), and the event loop that runs the attempts.

The `openai` package decides when something is tried again. Each of its attempts passes through the HTTP client of this
file, so the limits hold for retries, too.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from reflectrl.serving.endpoints.answers import ServerError, error_in
from reflectrl.serving.endpoints.journal import Cost
from reflectrl.serving.endpoints.streams import BrokenStreamError, whole_answer

if TYPE_CHECKING:
    from reflectrl.serving.endpoints.config import EndpointConfig
    from reflectrl.serving.endpoints.journal import Journal

T = TypeVar("T")
UNKNOWN = (408, 502, 504)
"""HTTP statuses that gateways send without knowing whether the model still computes. Such an attempt may cost."""
UNNUMBERED = 400
"""Status for an error that came with a success status and names none. It is not tried again."""
ENCODING = ("content-encoding", "content-length", "transfer-encoding")
"""Headers about the encoding of a received body. They are wrong for the decoded body that is passed on."""


@dataclass
class Attempts:
    """The attempts at one question.

    Attributes:
        most: largest cost of one attempt.
        made: number of attempts so far.
        number: the journal's number of the last attempt.
        unnumbered: True if the last attempt brought an error that names no status.
        over_budget: True if the budget forbade another attempt.
        too_large: True if an answer was larger than allowed.
    """

    most: Cost
    made: int = 0
    number: str = ""
    unnumbered: bool = False
    over_budget: bool = False
    too_large: bool = False


current: ContextVar[Attempts] = ContextVar("attempts")
"""Attempts at the question that is being asked."""


class Gate:
    """Let attempts through as long as the budget allows them."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._settled, self._under_way = asyncio.Condition(), 0

    async def reserve(self, attempts: Attempts) -> bool:
        """Return whether the budget allows one more attempt.

        If it seems not to, wait for the attempts under way, which may cost less than was reserved for them.
        """
        async with self._settled:
            while (number := self.journal.reserve(attempts.most)) is None:
                if not self._under_way:
                    attempts.over_budget = True
                    return False
                await self._settled.wait()
            attempts.number = number
            self._under_way += 1
            return True

    async def release(self) -> None:
        """Note that an attempt is over."""
        async with self._settled:
            self._under_way -= 1
            self._settled.notify_all()


def _http() -> tuple[Any, Any]:
    """Return the class of HTTP clients of the `openai` package, and the library that it comes from."""
    import openai

    base: Any = openai.DefaultAsyncHttpxClient
    return base, importlib.import_module(base.__mro__[1].__module__.partition(".")[0])


@cache
def honest_client() -> type[Any]:
    """Return a class of HTTP clients that correct the status of errors that came with a success status.

    The `openai` package then tries the request again or not, as with every other error.
    """
    base: Any
    base, http = _http()

    class Honest(base):
        """Inspect the bodies of answers."""

        async def send(self, request: Any, **settings: Any) -> Any:
            response = await super().send(request, **settings)
            await response.aread()
            error = error_in(response.content) if response.is_success else None
            return response if error is None else http.Response(**_with_status(response, error))

    return Honest


def _with_status(response: Any, error: ServerError) -> dict[str, Any]:
    """Return the parts of a response that reports an error found in another one."""
    body = {"error": {"message": error.complaint, "type": error.code}}
    status = error.status or UNNUMBERED
    return {"status_code": status, "headers": _plain_headers(response), "json": body, "request": response.request}


def _plain_headers(response: Any) -> list[tuple[str, str]]:
    """Return the headers of a response that stay true when its body is passed on decoded."""
    return [(name, value) for name, value in response.headers.multi_items() if name not in ENCODING]


@cache
def bounded_client() -> type[Any]:
    """Return a class of HTTP clients that bound every attempt. Imports `openai` (and its HTTP library)."""
    base: Any
    base, http = _http()

    class Bounded(base):
        """Count each attempt, and end an attempt that takes too long or brings too much."""

        def __init__(self, gate: Gate, config: EndpointConfig, **settings: Any) -> None:
            super().__init__(headers={"Accept-Encoding": "identity"}, **settings)
            self.gate, self.seconds, self.most = gate, config.timeout, config.answer_kib * 1024

        async def send(self, request: Any, **settings: Any) -> Any:
            attempts, journal = current.get(), self.gate.journal

            def refused(status: int, **headers: str) -> Any:
                return http.Response(status, headers=headers, request=request, content=b"")

            if not await self.gate.reserve(attempts):
                return refused(402, **{"x-should-retry": "false"})
            attempts.made += 1
            try:
                async with asyncio.timeout(self.seconds):
                    response, data = await self._read(request, **{**settings, "stream": True})
                if data is not None and response.is_success:
                    data = whole_answer(data)
                status, done = response.status_code, response.is_success
                error = error_in(data) if done and data is not None else None
                if error is not None or not (done or status in UNKNOWN):  # a refused request costs nothing
                    journal.settle(attempts.number, Cost())
                if data is None:
                    attempts.too_large = True
                    return refused(413, **{"x-should-retry": "false"})
                attempts.unnumbered = error is not None and error.status is None
                if error is not None:
                    return http.Response(**_with_status(response, error))
                headers = _plain_headers(response)
                if data.lstrip()[:1] == b"{":  # some servers call their JSON plain text, and a joined stream is JSON
                    headers = [("content-type", "application/json"), *(h for h in headers if h[0] != "content-type")]
                return http.Response(status, headers=headers, content=data, request=request)
            except (http.ConnectError, http.ConnectTimeout):
                journal.settle(attempts.number, Cost())  # nothing was sent
                raise
            except BrokenStreamError as error:
                raise http.RemoteProtocolError(str(error), request=request) from error
            except TimeoutError:
                return refused(408)
            finally:
                await self.gate.release()

        async def _read(self, request: Any, **settings: Any) -> tuple[Any, bytes | None]:
            """Return the response and its content; None for the content if it is too large."""
            response, data = await super().send(request, **settings), bytearray()
            try:
                async for chunk in response.aiter_bytes(2**16):
                    data += chunk
                    if len(data) > self.most:
                        return response, None
                return response, bytes(data)
            finally:
                with suppress(Exception):
                    await response.aclose()

    return Bounded


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all requests of this process. It runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop, and wait for its result. Ctrl-C cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
