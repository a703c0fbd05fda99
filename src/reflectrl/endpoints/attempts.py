"""What bounds each attempt to reach a server: the budget, a time, and a size; and the loop in which they are made.

The `openai` package decides when something is tried again. Every attempt of its passes through the HTTP client of this
file, so that retries count as first attempts do.
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

from reflectrl.endpoints.answers import ServerError, error_in
from reflectrl.endpoints.journal import Cost

if TYPE_CHECKING:
    from reflectrl.endpoints.config import EndpointConfig
    from reflectrl.endpoints.journal import Journal

T = TypeVar("T")
UNKNOWN = (408, 502, 504)
"""Statuses of those between us and the model, who do not know whether it computes on: such an attempt may cost."""
UNNUMBERED = 400
"""Status of an error that came as a success and names none: it is not tried again."""
ENCODING = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that speak of how a body came, which is not how it is handed on."""


@dataclass
class Attempts:
    """The attempts at one question.

    Attributes:
        most: what one may cost.
        made: how many there were.
        number: the journal's, of the last one.
        unnumbered: whether the last one brought an error that names no status.
    """

    most: Cost
    made: int = 0
    number: str = ""
    unnumbered: bool = False
    over_budget: bool = False
    too_large: bool = False


current: ContextVar[Attempts] = ContextVar("attempts")
"""Those of the question that is being asked."""


class Gate:
    """Lets attempts through as long as the budget allows them."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._settled, self._under_way = asyncio.Condition(), 0

    async def reserve(self, attempts: Attempts) -> bool:
        """Whether the budget allows one more attempt; waits for what is under way, which may cost less than feared."""
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
        """An attempt is over."""
        async with self._settled:
            self._under_way -= 1
            self._settled.notify_all()


def _http() -> tuple[Any, Any]:
    """The class of HTTP clients of the `openai` package, and the library that it comes from."""
    import openai

    base: Any = openai.DefaultAsyncHttpxClient
    return base, importlib.import_module(base.__mro__[1].__module__.partition(".")[0])


@cache
def honest_client() -> type[Any]:
    """The class of HTTP clients that give an error which came as a success the status that it speaks of.

    The `openai` package then tries it again or not, as it does with every other error.
    """
    base: Any
    base, http = _http()

    class Honest(base):
        """Looks into the bodies of answers."""

        async def send(self, request: Any, **settings: Any) -> Any:
            response = await super().send(request, **settings)
            await response.aread()
            error = error_in(response.content) if response.is_success else None
            return response if error is None else http.Response(**_with_status(response, error))

    return Honest


def _with_status(response: Any, error: ServerError) -> dict[str, Any]:
    """The parts of a response that is the error of another one."""
    body = {"error": {"message": error.complaint}}
    status = error.status or UNNUMBERED
    return {"status_code": status, "headers": _kept(response), "json": body, "request": response.request}


def _kept(response: Any) -> list[tuple[str, str]]:
    """The headers of a response that hold for its body however that is handed on."""
    return [(name, value) for name, value in response.headers.multi_items() if name not in ENCODING]


@cache
def bounded_client() -> type[Any]:
    """The class of HTTP clients that bound every attempt, once `openai` (and its HTTP library) is imported."""
    base: Any
    base, http = _http()

    class Bounded(base):
        """Counts each attempt, and ends one that takes too long or brings too much."""

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
                status, done = response.status_code, response.is_success
                error = error_in(data) if done and data is not None else None
                if error is not None or not (done or status in UNKNOWN):  # of what is refused, nothing is computed
                    journal.settle(attempts.number, Cost())
                if data is None:
                    attempts.too_large = True
                    return refused(413, **{"x-should-retry": "false"})
                attempts.unnumbered = error is not None and error.status is None
                if error is not None:
                    return http.Response(**_with_status(response, error))
                return http.Response(status, headers=_kept(response), content=data, request=request)
            except (http.ConnectError, http.ConnectTimeout):
                journal.settle(attempts.number, Cost())  # nothing was sent
                raise
            except TimeoutError:
                return refused(408)
            finally:
                await self.gate.release()

        async def _read(self, request: Any, **settings: Any) -> tuple[Any, bytes | None]:
            """The response and what it brings; None if that is too much."""
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
    """The loop in which all requests of this process are under way, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work in the loop; Ctrl-C stops it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
