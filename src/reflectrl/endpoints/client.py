"""The one client of language models behind an address: bounded, remembered, and within a budget.

The `openai` package speaks to the server and tries again what failed; this file bounds each attempt in time and size,
asks as many things at once as the recipe allows, keeps every answer (`journal.py`), and sees to it that neither a key
nor a prompt gets into a message or a log.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import logging
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from reflectrl.endpoints.config import EndpointConfig, require_address
from reflectrl.endpoints.journal import Cost, Journal
from reflectrl.plugins import one_line
from reflectrl.types import UserError

T = TypeVar("T")
Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
QUOTED = 24
"""So many characters of a prompt in a server's complaint, and the complaint is not shown."""


class Ask(NamedTuple):
    """A question to a model.

    Attributes:
        messages: the conversation so far, oldest first.
        max_tokens: longest answer, in the server's tokens.
        temperature: 0 asks for the likeliest answer (servers do not all promise the same one twice).
        sample: equal questions are asked once for each number.
    """

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.0
    sample: int = 0


@dataclass
class _Attempts:
    """The attempts at one question, as the HTTP client below sees them."""

    most: Cost
    number: str = ""
    over_budget: bool = False
    too_large: bool = False


_attempts: ContextVar[_Attempts] = ContextVar("attempts")


def without_thinking(answer: str) -> str:
    """The answer without the <think> ... </think> part that some servers pass on; "" if the thinking never ended."""
    return re.sub(r"<think>.*?(</think>|\Z)", "", answer, flags=re.DOTALL).rpartition("</think>")[2].strip()


class Endpoint:
    """Chat completions from an OpenAI-compatible server; safe to share by threads.

    Args:
        config: the server, its model, and the bounds.
        journal: remembers answers and holds the budget; without one, nothing outlives this object.

    Attributes:
        asked: questions so far; `known` of them were answered from the journal.
        where, name: what messages call it: the address, and the server's name for the model.

    Raises:
        UserError: the `openai` package is missing, no address or model is named, or the key's variable is not set.
    """

    def __init__(self, config: EndpointConfig, journal: Journal | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise UserError("endpoints need the openai package: pip install reflectrl[endpoint]") from error
        if problem := require_address(config, "endpoint").problem():
            raise UserError(f"endpoint: {problem}")
        for name in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):  # their finer lines quote what is sent
            logging.getLogger(name).setLevel(logging.WARNING)
        self.config, self.journal = config, Journal() if journal is None else journal
        self.where, self.name = config.base_url, config.model
        self.asked = self.known = 0
        self._errors, self._key = openai, config.key()
        self._client: Any = None
        self._free = asyncio.Semaphore(config.concurrency)
        self._settled, self._under_way = asyncio.Condition(), 0
        self._same: dict[str, asyncio.Task[str]] = {}

    def complete(self, messages: Sequence[Message], max_tokens: int, temperature: float, sample: int = 0) -> str:
        """The answer to one question; see `Ask` and `complete_all`."""
        return self.complete_all([Ask(messages, max_tokens, temperature, sample)])[0]

    def complete_all(self, asks: Sequence[Ask], tick: Callable[[int], None] = lambda done: None) -> list[str]:
        """The server's answers (its first choices), in order; "" where the model said nothing.

        Args:
            tick: receives how many are answered.

        Raises:
            UserError: a question has no usable answer after all tries, or the budget is spent; one line that names the
                address. What was under way is finished and kept first.
        """
        self.asked += len(asks)
        found = [self.journal.answer(self.key(ask)) for ask in asks]
        if missing := [i for i, answer in enumerate(found) if answer is None]:
            done = len(asks) - len(missing)
            answers = in_loop(self._all([asks[i] for i in missing], lambda count: tick(done + count)))
            for i, answer in zip(missing, answers, strict=True):
                found[i] = answer
        self.known += len(asks) - len(missing)
        return [answer or "" for answer in found]

    def estimate(self, asks: Sequence[Ask]) -> Cost:
        """About what these questions would cost at most: four characters a token, answers as long as they may be."""
        left = {self.key(ask): ask for ask in asks if self.journal.answer(self.key(ask)) is None}.values()
        read = sum(sum(len(message["content"]) for message in ask.messages) // 4 for ask in left)
        return self._cost(read, sum(ask.max_tokens for ask in left), len(left))

    def key(self, ask: Ask) -> str:
        """What identifies a question: server, model, every word and setting."""
        sent = self._request(ask)
        text = json.dumps([self.config.base_url, self.config.api, self.config.api_version, sent, ask.sample])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _request(self, ask: Ask) -> dict[str, Any]:
        limit = "max_completion_tokens" if self.config.newer_parameters else "max_tokens"
        settings = {} if self.config.newer_parameters else {"temperature": ask.temperature}
        return {"model": self.config.model, "messages": list(ask.messages), limit: ask.max_tokens, **settings}

    def _cost(self, tokens_in: int, tokens_out: int, requests: int = 1) -> Cost:
        money = (tokens_in * self.config.price_in + tokens_out * self.config.price_out) / 1e6
        return Cost(tokens_in, tokens_out, money, requests)

    # ---- in the loop -------------------------------------------------------------------------------------------------

    async def _all(self, asks: Sequence[Ask], tick: Callable[[int], None]) -> list[str]:
        """All answers, or the first failure once everything under way has ended."""
        failures: list[BaseException] = []
        done = 0

        async def one(ask: Ask) -> str:
            nonlocal done
            async with self._free:
                if failures:
                    return ""
                try:
                    answer = await self._once(ask)
                except BaseException as error:
                    failures.append(error)
                    return ""
            done += 1
            tick(done)
            return answer

        answers = await asyncio.gather(*(one(ask) for ask in asks))
        await self._hang_up()
        if failures:
            raise failures[0]
        return answers

    async def _hang_up(self) -> None:
        """Close the connections, unless questions of others are under way: nobody says when an endpoint is done."""
        if self._client is not None and all(task.done() for task in self._same.values()):
            client, self._client = self._client, None
            await client.close()

    async def _once(self, ask: Ask) -> str:
        """The answer to a question, which is asked once however many want to know it."""
        key = self.key(ask)
        known = self.journal.answer(key)
        if known is not None:
            return known
        task = self._same.get(key)
        if task is None:
            task = self._same[key] = asyncio.ensure_future(self._answer(ask, key))
            task.add_done_callback(lambda _: self._same.pop(key, None))
        return await task

    async def _answer(self, ask: Ask, key: str) -> str:
        """Ask until the answer can be read: the client itself tries again what failed on the way."""
        if self._client is None:
            self._client = self._opened()
        size = sum(len(message["content"].encode("utf-8", "surrogatepass")) for message in ask.messages)
        most = self._cost(size + 16 * len(ask.messages) + 64, ask.max_tokens)  # a token has a byte or more
        for left in reversed(range(self.config.retries + 1)):
            attempts = _Attempts(most)
            _attempts.set(attempts)
            try:
                answer = await self._client.chat.completions.create(**self._request(ask))
            except (self._errors.OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
                if not left or not isinstance(error, ValueError | self._errors.APIResponseValidationError):
                    raise self._failure(self._explain(error, attempts, ask)) from None
                continue
            try:
                text = _text_of(answer)
            except ValueError as error:
                if not left:
                    raise self._failure(str(error)) from None
                continue
            used = getattr(answer, "usage", None)
            read, written = getattr(used, "prompt_tokens", None), getattr(used, "completion_tokens", None)
            spent = most
            if isinstance(read, int) and isinstance(written, int) and min(read, written) >= 0:
                spent = self._cost(read, written)
            self.journal.settle(attempts.number, spent, key, text)
            return text
        raise AssertionError("the loop returns or raises")

    def _opened(self) -> Any:
        """The openai client, over an HTTP client that keeps to the bounds."""
        config = self.config
        here = urlsplit(config.base_url).hostname in LOOPBACK  # never through a proxy, which might be elsewhere
        http = _bounded_client()(self, timeout=config.timeout, follow_redirects=False, trust_env=not here)
        shared: dict[str, Any] = {
            "api_key": self._key or "none", "timeout": config.timeout, "max_retries": config.retries,
            "http_client": http,
        }  # fmt: skip
        if config.api == "azure":
            return self._errors.AsyncAzureOpenAI(
                azure_endpoint=config.base_url, api_version=config.api_version, **shared
            )
        return self._errors.AsyncOpenAI(base_url=config.base_url, **shared)

    async def reserve(self, attempts: _Attempts) -> bool:
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

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _explain(self, error: Exception, attempts: _Attempts, ask: Ask) -> str:
        if attempts.over_budget:
            return f"the budget is spent ({self.journal.refused}); what was answered is kept: raise it and go on"
        if attempts.too_large:
            return f"the answer is larger than answer_kib = {self.config.answer_kib}"
        status = getattr(error, "status_code", None)
        if status == 408 or isinstance(error, self._errors.APITimeoutError):
            return f"no answer within {self.config.timeout:g} s"
        if isinstance(error, self._errors.APIConnectionError):
            return f"cannot connect ({one_line(error.__cause__ or error)})"
        if isinstance(error, self._errors.APIStatusError):
            complaint = " ".join(complaint_of(getattr(error, "body", None)).split())[:300]
            quoted = any(_quotes(complaint, message["content"]) for message in ask.messages)
            return f"error {status}{f': {complaint}' if complaint and not quoted else ''}"
        return f"the answer cannot be read ({type(error).__name__})"

    def _failure(self, why: str) -> UserError:
        if self._key:  # some servers repeat it when they refuse it
            why = why.replace(self._key, "***")
        return UserError(f"endpoint {self.config.base_url} (model {self.config.model}): {why}")


def _text_of(answer: Any) -> str:
    """The text of a completion; ValueError says what is wrong: the client checks no shapes."""
    try:
        content: object = answer.choices[0].message.content
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError("the answer is not a chat completion (does the address end in /v1?)") from error
    if content is not None and not isinstance(content, str):
        raise ValueError("the answer is not a chat completion (its content is not text)")
    return content or ""


def complaint_of(body: Any) -> str:
    """What a server says is wrong."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", "") if isinstance(inner, dict) else inner
    return body if isinstance(body, str) else ""


def _quotes(complaint: str, prompt: str) -> bool:
    """Whether a complaint repeats a part of a prompt."""
    said, plain = complaint.replace("\\n", " "), " ".join(prompt.split())
    return any(said[i : i + QUOTED] in plain for i in range(len(said) - QUOTED + 1)) or (bool(plain) and plain in said)


@cache
def _bounded_client() -> type[Any]:
    """The class of HTTP clients that bound every attempt, once `openai` (and its HTTP library) is imported."""
    import openai

    base: Any = openai.DefaultAsyncHttpxClient
    http: Any = importlib.import_module(base.__mro__[1].__module__.partition(".")[0])

    class Bounded(base):
        """Counts each attempt, and ends one that takes too long or brings too much."""

        def __init__(self, endpoint: Endpoint, **settings: Any) -> None:
            super().__init__(headers={"Accept-Encoding": "identity"}, **settings)
            self.endpoint = endpoint

        async def send(self, request: Any, **settings: Any) -> Any:
            attempts, config = _attempts.get(), self.endpoint.config

            def refused(status: int, **headers: str) -> Any:
                return http.Response(status, headers=headers, request=request, content=b"")

            if not await self.endpoint.reserve(attempts):
                return refused(402, **{"x-should-retry": "false"})
            try:
                async with asyncio.timeout(config.timeout):
                    response, data = await self._read({**settings, "stream": True}, request, config.answer_kib * 1024)
                if response.status_code != 200:  # of what is refused, nothing is computed
                    self.endpoint.journal.settle(attempts.number, Cost())
                if data is None:
                    attempts.too_large = True
                    return refused(413, **{"x-should-retry": "false"})
                kept = [(name, value) for name, value in response.headers.multi_items() if name not in ENCODING]
                return http.Response(response.status_code, headers=kept, content=data, request=request)
            except (http.ConnectError, http.ConnectTimeout):
                self.endpoint.journal.settle(attempts.number, Cost())  # nothing was sent
                raise
            except TimeoutError:
                return refused(408)
            finally:
                await self.endpoint.release()

        async def _read(self, settings: dict[str, Any], request: Any, most: int) -> tuple[Any, bytes | None]:
            """The response and what it brings; None if that is too much."""
            response, data = await super().send(request, **settings), bytearray()
            try:
                async for chunk in response.aiter_bytes(2**16):
                    data += chunk
                    if len(data) > most:
                        return response, None
                return response, bytes(data)
            finally:
                with suppress(Exception):
                    await response.aclose()

    return Bounded


ENCODING = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that speak of how a body came, which is not how it is handed on."""


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
