"""HTTP API of an agent, as an ASGI application (Starlette)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reflectrl.api import Agent
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import Observation, Turn, UserError
from reflectrl.models.players import Policy
from reflectrl.serving.server import systemone
from reflectrl.serving.server.answers import Answer, EventStream, code_of
from reflectrl.serving.server.batching import Batcher
from reflectrl.serving.server.decisions import decision_body, read_decisions
from reflectrl.serving.server.guard import HANDLERS, Guard, Limits
from reflectrl.serving.server.observations import observation_of, state_of_json
from reflectrl.serving.server.openapi import document
from reflectrl.serving.server.protocol import WIDEST, Refusal, read_request
from reflectrl.serving.server.questions import (
    ALIAS,
    Familiar,
    Question,
    ReadQuestion,
    State,
    Verdict,
    no_reading,
    pose,
    verdict,
)


class Server(Guard):
    """Answer requests with an agent.

    Args:
        about: description of the agent for `GET /v1/models`.
        limits, token: see `Guard`.
        released: date of the agent, as YYYY-MM-DD.
        read_question: the environment's translation of clients' questions (`TextEnv.read_question`).
        refuses_strangers: refuse questions that the agent was never trained for. By default they are answered with low
            confidence.
    """

    def __init__(
        self,
        agent: Agent,
        name: str,
        about: dict[str, Any],
        limits: Limits,
        token: str | None,
        *,
        released: str = "1970-01-01",
        read_question: ReadQuestion = no_reading,
        refuses_strangers: bool = False,
    ) -> None:
        super().__init__(limits, token)
        player = agent.player
        labelled = not isinstance(player, Policy) or (player.scoring == "enumeration" and not player.shuffle_labels)
        self.familiar = Familiar(not labelled, read_question)
        self.released, self.refuses_strangers = released, refuses_strangers
        self.agent, self.name, self.about, self.started = agent, printable_line(name), about, int(time.time())
        self.batcher = Batcher(agent, limits.batch)
        self.document = document(self.name, token is not None)

    def app(self) -> Starlette:
        """Return the application. When it ends, the model's thread ends too."""
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/systemone", self.systemone, methods=["POST"]),
            Route("/v1/decisions", self.decisions, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
        ]

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self.batcher.close)

        return Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=lifespan)

    # ---- routes ------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """GET /health: needs no token."""
        self.admit(request, open_to_all=True)
        return JSONResponse({"status": "ok"})

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        self.admit(request, open_to_all=True)
        return JSONResponse(self.document)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        self.admit(request)
        about = f"{self.about.get('arm', 'agent')} of {self.about.get('environment', 'an environment')}"
        entries = [{"name": name, "description": about, "release_date": self.released} for name in (self.name, ALIAS)]
        return JSONResponse({"object": "list", "data": [self._info()], "models": entries})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self.admit(request)
        self._require_model(request.path_params["model"])
        return JSONResponse(self._info())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        self.admit(request)
        deadline = self.deadline(request)
        with ExitStack() as stack:
            stack.enter_context(self.slot())
            parsed = read_request(await self.body(request, deadline))
            self._require_model(parsed.model)
            observation = self._fitting(observation_of(parsed))
            rewards = parsed.reflectrl.rewards if parsed.reflectrl else ()
            question = self.batcher.ask(observation, rewards)
            turns = _timely(question.turns(), deadline)
            answer = Answer(parsed, question, [await anext(turns)])
            if parsed.stream:
                return EventStream(answer.events(turns), stack.pop_all())
            answer.turns += [turn async for turn in turns]
            return JSONResponse(answer.body())

    async def systemone(self, request: Request) -> Response:
        """POST /v1/systemone. Errors have this protocol's form."""
        try:
            self.admit(request)
            deadline = self.deadline(request)
            with self.slot():
                parsed = systemone.read_systemone(await self.body(request, deadline))
                if parsed.model != ALIAS:
                    self._require_model(parsed.model)
                questions = parsed.posed()
                verdicts = await self._decide(state_of_json(parsed.state), questions, deadline)
                answered = [verdict for verdict in verdicts if verdict is not None]
                if len(answered) < len(verdicts):
                    raise systemone.untrained(
                        [q.name for q, verdict in zip(questions, verdicts, strict=True) if verdict is None]
                    )
            return JSONResponse(systemone.answer_body(self.name, parsed, answered))
        except UserError as error:
            unfit = systemone.invalid(str(error), code_of(error), "state")
            return JSONResponse(systemone.error_body(unfit), unfit.status)
        except Refusal as error:
            return JSONResponse(systemone.error_body(error), error.status, headers=error.headers)

    async def decisions(self, request: Request) -> Response:
        """POST /v1/decisions."""
        self.admit(request)
        deadline = self.deadline(request)
        with self.slot():
            parsed = read_decisions(await self.body(request, deadline))
            if parsed.model != ALIAS:
                self._require_model(parsed.model)
            try:
                verdicts = await self._decide(parsed.state(), parsed.posed(), deadline)
            except UserError as error:
                raise Refusal(422, str(error), code_of(error), "input") from None
            return JSONResponse(decision_body(self.name, parsed, verdicts))

    async def _decide(self, state: State, questions: Sequence[Question], deadline: float) -> list[Verdict | None]:
        """Answer questions about a state, each by itself. None stands for a question that is refused.

        Raises:
            UserError: something does not fit the model's context.
            Refusal: the model does not answer in time.
        """
        self._require_short(state, questions)
        forms = [pose(state, question, self.familiar) for question in questions]
        queued = [
            None if self.refuses_strangers and not form.is_trained
            else self.batcher.ask(form.observation, state.rewards if form.is_trained else (), form.is_trained)
            for form in forms
        ]  # fmt: skip
        verdicts: list[Verdict | None] = []
        try:
            for form, question in zip(forms, queued, strict=True):
                if question is None:
                    verdicts.append(None)
                    continue
                turns = [turn async for turn in _timely(question.turns(), deadline)]
                verdicts.append(verdict(form, turns, question.read, question.is_cut))
        finally:
            for question in queued:
                if question is not None:
                    question.is_dropped = True  # nobody waits for the rest after an error
        return verdicts

    # ---- what is let in ----------------------------------------------------------------------------------------------

    def _require_model(self, name: str) -> None:
        if name != self.name:
            raise Refusal(404, f"there is no model {name[:100]!r}; this is {self.name!r}", "model_not_found", "model")

    def _fitting(self, observation: Observation) -> Observation:
        """Refuse texts that cannot fit the context, before time is spent on tokens."""
        if isinstance(self.agent.player, Policy):
            context = self.agent.player.lm.context
            texts = (observation.text, observation.carried, *observation.actions)
            most, size = WIDEST * context, sum(map(len, texts))
            if size > most:
                long = f"history, state and actions have {size:,} characters; with a context of {context} tokens"
                raise Refusal(400, f"{long} they may have {most:,}", "context_length_exceeded", "messages")
        return observation

    def _require_short(self, state: State, questions: Sequence[Question]) -> None:
        """Raise UserError for texts of a decision that cannot fit the context, before time is spent on tokens."""
        if isinstance(self.agent.player, Policy):
            context = self.agent.player.lm.context
            most = WIDEST * context
            carried = len(state.observation.carried) if state.observation else 0
            size = len(state.text) + carried + max(len(text) for question in questions for text in question.options)
            if size > most:
                long = f"the state and the longest option have {size:,} characters"
                raise UserError(f"{long}; with a context of {context} tokens they may have {most:,}")

    def _info(self) -> dict[str, Any]:
        info = {"id": self.name, "object": "model", "created": self.started, "owned_by": "reflectrl"}
        return {**info, "reflectrl": self.about}


async def _timely(turns: AsyncIterator[Turn], deadline: float) -> AsyncIterator[Turn]:
    """Yield the turns. Raise Refusal if a turn does not arrive in time."""
    while True:
        try:
            async with asyncio.timeout_at(deadline):  # per turn, as another task may await the next
                turn = await anext(turns)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(503, "the model did not answer in time", "timeout", None, {"Retry-After": "1"}) from None
        yield turn
