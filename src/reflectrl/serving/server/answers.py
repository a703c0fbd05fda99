"""Bodies of answers: the complete answer, or server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reflectrl.core.terminal import printable
from reflectrl.core.types import Choice, Reflection, TooLongError, Turn, UserError, named_seed
from reflectrl.serving.server.batching import Asked
from reflectrl.serving.server.protocol import ChatRequest, Refusal


class Answer:
    """An answer: the reflection, and the choice of a listed action.

    Args:
        request: the request to answer.
        asked: the same question in the form that players read.
        turns: the turns so far.
    """

    def __init__(self, request: ChatRequest, asked: Asked, turns: list[Turn]) -> None:
        self.request, self.asked, self.turns, self.actions = request, asked, turns, asked.live.observation.actions
        self.about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}

    @property
    def reflection(self) -> str | None:
        """The reflection without control characters; None if there is none."""
        return next((printable(turn.text) for turn in self.turns if isinstance(turn, Reflection)), None)

    def choice(self) -> dict[str, Any]:
        """Return the chosen action and the probabilities. At a temperature above 0 the action is drawn from them."""
        [turn] = [turn for turn in self.turns if isinstance(turn, Choice)]
        action, temperature = turn.choice, self.request.temperature or 0.0
        if temperature > 0 and turn.probs:
            seed = self.request.seed
            rng = np.random.default_rng(None if seed is None else named_seed(seed, "temperature"))
            logits = np.log(np.maximum(turn.probs, 1e-12))
            with np.errstate(over="ignore"):  # near 0, all but the most probable are infinitely far away
                weights = np.exp((logits - logits.max()) / temperature)
            action = int(rng.choice(len(weights), p=weights / weights.sum()))
        return {"action": action, "probabilities": list(turn.probs)}

    def usage(self) -> dict[str, Any]:
        """Count the tokens that the policy read, and the tokens that policy and reflector wrote."""
        read = self.asked.read
        thought = sum(len(turn.token_ids) for turn in self.turns if isinstance(turn, Reflection))
        written = sum(len(turn.token_ids) for turn in self.turns)
        details = {"reasoning_tokens": thought}
        return {
            "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
            "completion_tokens_details": details,
        }  # fmt: skip

    def body(self) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        decision = self.choice()
        plain_message = {"role": "assistant", "content": self.actions[decision["action"]]}
        message = {**plain_message, "reasoning_content": self.reflection}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "reflectrl": decision}
        return {**self.about, "object": "chat.completion", "choices": [choice], "usage": self.usage()}

    async def events(self, turns: AsyncIterator[Turn]) -> AsyncIterator[str]:
        """Yield the answer as server-sent events: the reflection as soon as it is written, then the action."""
        try:
            yield self._chunk({"role": "assistant"})
            if self.reflection is not None:
                yield self._chunk({"reasoning_content": self.reflection})
            self.turns += [turn async for turn in turns]
            decision = self.choice()
            yield self._chunk({"content": self.actions[decision["action"]]}, reflectrl=decision)
            yield self._chunk({}, finish_reason="stop")
            options = self.request.stream_options
            if options is not None and options.include_usage:
                yield _event({**self.about, "object": "chat.completion.chunk", "choices": [], "usage": self.usage()})
        except (UserError, Refusal) as error:
            yield _event(refusal_of(error).body())
        yield "data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
        return _event({**self.about, "object": "chat.completion.chunk", "choices": [choice]})


class EventStream(StreamingResponse):
    """Server-sent events that keep a request's slot until they end, for whatever reason."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], held: ExitStack) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store"})
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, then free the request's slot."""
        with self.held:
            await super().__call__(scope, receive, send)


def refusal_of(error: UserError | Refusal) -> Refusal:
    """Convert a player's error into an answer to the request."""
    return error if isinstance(error, Refusal) else Refusal(400, str(error), code_of(error), "messages")


def code_of(error: UserError) -> str:
    """Return the code of a player's error: the request is too long, or the model cannot answer."""
    return "context_length_exceeded" if isinstance(error, TooLongError) else "not_answerable"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"
