"""The HTTP API of one agent, as an ASGI application (Starlette)."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reflectrl.api import Agent
from reflectrl.players.policy import Policy
from reflectrl.terminal import printable_line
from reflectrl.types import Observation, Turn, UserError
from reflectrl.wings.serve.answers import Answer, EventStream, refusal_of
from reflectrl.wings.serve.batching import Batcher
from reflectrl.wings.serve.observations import observation_of
from reflectrl.wings.serve.openapi import document
from reflectrl.wings.serve.protocol import Refusal, read_request

DRAINED = 64 * 2**20
"""Bytes of a body that is too large which are still read: most clients listen only when they have sent everything."""
WIDEST = 64
"""Characters per token of the context that a text may have before it is even tokenised."""
LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Limits:
    """What the server takes upon itself.

    Attributes:
        body: bytes of a request.
        concurrent: requests that are being answered or wait for it.
        batch: requests that are computed in one call of the model.
        seconds: from the first byte of a request to the end of its answer.
    """

    body: int = 2**20
    concurrent: int = 64
    batch: int = 32
    seconds: float = 60.0


class Server:
    """Answers requests by an agent.

    Args:
        about: what `GET /v1/models` says of it.
        token: that requests have to bring; None where everybody who reaches this machine's loopback may ask.
    """

    def __init__(self, agent: Agent, name: str, about: dict[str, Any], limits: Limits, token: str | None) -> None:
        self.agent, self.limits, self.token = agent, limits, token
        self.name, self.about, self.started, self.busy = printable_line(name), about, int(time.time()), 0
        self.batcher = Batcher(agent, limits.batch)
        self.document = document(token is not None)

    def app(self) -> Starlette:
        """The application; when it ends, so does the thread of the model."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
        ]
        handlers: dict[Any, Any] = {Refusal: refused, UserError: refused, HTTPException: not_found, Exception: failed}

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self.batcher.close)

        return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)

    # ---- routes ------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """GET /health: needs no token."""
        self._admit(request, open_to_all=True)
        return JSONResponse({"status": "ok"})

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        self._admit(request, open_to_all=True)
        return JSONResponse(self.document)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        self._admit(request)
        return JSONResponse({"object": "list", "data": [self._info()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self._admit(request)
        self._require_model(request.path_params["model"])
        return JSONResponse(self._info())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        self._admit(request)
        deadline = asyncio.get_running_loop().time() + self.limits.seconds
        with ExitStack() as held:
            held.enter_context(self._place())
            asked = read_request(await self._body(request, deadline))
            self._require_model(asked.model)
            observation = self._fitting(observation_of(asked))
            rewards = asked.reflectrl.rewards if asked.reflectrl else ()
            question = self.batcher.ask(observation, rewards)
            turns = _timely(question.turns(), deadline)
            answer = Answer(asked, question, [await anext(turns)])
            if asked.stream:
                return EventStream(answer.events(turns), held.pop_all())
            answer.turns += [turn async for turn in turns]
            return JSONResponse(answer.whole())

    # ---- who and what is let in --------------------------------------------------------------------------------------

    def _admit(self, request: Request, open_to_all: bool = False) -> None:
        """Refuse requests without the token; without one, those that a web page made under another host's name."""
        if self.token is None:
            host = request.headers.get("host", "")
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name.lower() not in LOCAL:
                raise Refusal(403, f"this server answers at {', '.join(LOCAL)} only, not at {host[:100]!r}", "host")
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
        if not (open_to_all or hmac.compare_digest(given, self.token.encode())):
            wanted = {"WWW-Authenticate": "Bearer"}
            raise Refusal(
                401, "wrong token, or none: send Authorization: Bearer TOKEN", "invalid_api_key", None, wanted
            )

    @contextmanager
    def _place(self) -> Any:
        if self.busy >= self.limits.concurrent:
            busy = f"{self.busy} requests are being answered, the most that this server takes on"
            raise Refusal(429, busy, "rate_limit_exceeded", None, {"Retry-After": "1"})
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    async def _body(self, request: Request, deadline: float) -> bytes:
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

    def _require_model(self, name: str) -> None:
        if name != self.name:
            raise Refusal(404, f"there is no model {name[:100]!r}; this is {self.name!r}", "model_not_found", "model")

    def _fitting(self, observation: Observation) -> Observation:
        """Refuse texts that cannot fit the context, before time is spent on tokens."""
        if isinstance(self.agent.player, Policy):
            context = self.agent.player.lm.context
            most, size = WIDEST * context, len(observation.text) + sum(map(len, observation.actions))
            if size > most:
                long = f"history, state and actions have {size:,} characters; with a context of {context} tokens"
                raise Refusal(400, f"{long} they may have {most:,}", "context_length_exceeded", "messages")
        return observation

    def _info(self) -> dict[str, Any]:
        info = {"id": self.name, "object": "model", "created": self.started, "owned_by": "reflectrl"}
        return {**info, "reflectrl": self.about}


async def _timely(turns: AsyncIterator[Turn], deadline: float) -> AsyncIterator[Turn]:
    """The turns; a Refusal where one is not there in time."""
    while True:
        try:
            async with asyncio.timeout_at(deadline):  # of one turn: the next one may be waited for by another task
                turn = await anext(turns)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(503, "the model did not answer in time", "timeout", None, {"Retry-After": "1"}) from None
        yield turn


# ---- errors ----------------------------------------------------------------------------------------------------------


async def refused(_: Request, error: Refusal | UserError) -> Response:
    """The answer to a request that was refused, or that does not fit the model."""
    refusal = refusal_of(error)
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers)


async def not_found(_: Request, error: HTTPException) -> Response:
    """The answer where there is no such path or method."""
    told = Refusal(error.status_code, str(error.detail), "not_found")
    return JSONResponse(told.body(), error.status_code, headers=dict(error.headers or {}))


async def failed(_: Request, error: Exception) -> Response:
    """The answer to a bug of ours, whose traceback goes to stderr."""
    return JSONResponse(Refusal(500, "the server failed; its stderr says why", "internal_error").body(), 500)
