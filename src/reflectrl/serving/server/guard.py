"""Admission and refusal of requests, the same for all servers of this package."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from reflectrl.core.types import UserError
from reflectrl.serving.server.answers import refusal_of
from reflectrl.serving.server.protocol import Refusal

DRAINED = 64 * 2**20
"""Number of bytes still read from a body that is too large. Most clients listen only after sending everything."""
LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body: bytes of a request.
        concurrent: requests that are being answered or wait for it.
        batch: requests that are computed in one call of the model.
        seconds: longest time from the first byte of a request to the end of its answer.
    """

    body: int = 2**20
    concurrent: int = 64
    batch: int = 32
    seconds: float = 60.0


class Guard:
    """Admit requests, and read their bodies within the limits.

    Args:
        token: token that requests must carry. With None, every client that reaches the loopback is admitted.
    """

    def __init__(self, limits: Limits, token: str | None) -> None:
        self.limits, self.token, self.busy = limits, token, 0

    def admit(self, request: Request, open_to_all: bool = False) -> None:
        """Refuse requests without the token.

        If there is no token, refuse requests made under another host's name (by a web page, say).
        """
        if self.token is None:
            host = request.headers.get("host", "")
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name.lower() not in LOCAL:
                raise Refusal(403, f"this server answers at {', '.join(LOCAL)} only, not at {host[:100]!r}", "host")
            return
        sent_token = request.headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
        if not (open_to_all or hmac.compare_digest(sent_token, self.token.encode())):
            wanted = {"WWW-Authenticate": "Bearer"}
            raise Refusal(
                401, "wrong token, or none: send Authorization: Bearer TOKEN", "invalid_api_key", None, wanted
            )

    def deadline(self, request: Request) -> float:
        """Return the time by which a request must be answered, by the loop's clock, counted from its first byte."""
        began: float = getattr(request.state, "began", asyncio.get_running_loop().time())
        return began + self.limits.seconds

    @contextmanager
    def slot(self) -> Any:
        """Hold a slot for a request within the block. Raise Refusal if all are taken."""
        if self.busy >= self.limits.concurrent:
            busy = f"{self.busy} requests are being answered, the most that this server takes on"
            raise Refusal(429, busy, "rate_limit_exceeded", None, {"Retry-After": "1"})
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    async def body(self, request: Request, deadline: float) -> bytes:
        """Return the body of a request. Raise Refusal if it is too large, not JSON, or late (by the loop's clock)."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout_at(deadline):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self.limits.body:
                        body += chunk
                    elif size > DRAINED:
                        break
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self.limits.seconds:g} s", "timeout") from None
        if size > self.limits.body:
            raise Refusal(413, f"the body has more than {self.limits.body:,} bytes", "body_too_large")
        if kind != "application/json":
            raise Refusal(415, f"Content-Type must be application/json, not {kind[:60]!r}", "unsupported_media_type")
        return bytes(body)


# ---- errors ----------------------------------------------------------------------------------------------------------


async def refused(_: Request, error: Refusal | UserError) -> Response:
    """Answer a request that was refused, or that does not fit the model."""
    refusal = refusal_of(error)
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers)


async def not_found(_: Request, error: HTTPException) -> Response:
    """Answer a request for a path or method that does not exist."""
    refusal = Refusal(error.status_code, str(error.detail), "not_found")
    return JSONResponse(refusal.body(), error.status_code, headers=dict(error.headers or {}))


async def gone(_: Request, error: Exception) -> Response:
    """Answer a client that has left. The answer is never sent."""
    return Response(status_code=400)


async def failed(_: Request, error: Exception) -> Response:
    """Answer after a bug of the server, whose traceback goes to stderr."""
    return JSONResponse(Refusal(500, "the server failed; its stderr says why", "internal_error").body(), 500)


HANDLERS: dict[Any, Any] = {
    Refusal: refused,
    UserError: refused,
    HTTPException: not_found,
    ClientDisconnect: gone,
    Exception: failed,
}
"""Kind of exception → the handler that makes its answer."""
