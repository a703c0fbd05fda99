"""The client of language models behind an address: bounded, cached, and within a budget.

The `openai` package speaks to the server and retries failed requests; `attempts.py` bounds each attempt. This file
asks as many questions at once as the recipe allows and keeps every answer (`journal.py`). It ensures that neither a key
nor a prompt gets into a message or a log.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line
from reflectrl.core.prompts.messages import folded
from reflectrl.core.terminal import note_once
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import UnreadableError, shown_complaint, text_of, tokens_of, why_silent
from reflectrl.serving.endpoints.attempts import Attempts, Gate, bounded_client, current, in_loop
from reflectrl.serving.endpoints.config import EndpointConfig, require_address
from reflectrl.serving.endpoints.journal import Cost, Journal
from reflectrl.serving.endpoints.secrets import http_settings, masked

UNREADABLE = (ValueError, RecursionError)
"""Exceptions raised for an answer that is not JSON, or is nested too deep."""
NO_SYSTEM = re.compile(r"(?i)\bsystem\b.{0,200}\broles?\b|\broles?\b.{0,200}\bsystem\b")
"""Pattern of error messages from servers that do not support the system role."""
Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""


class Ask(NamedTuple):
    """A question to a model.

    Attributes:
        messages: the conversation so far, oldest first.
        max_tokens: longest answer, in the server's tokens.
        temperature: 0 asks for the likeliest answer (not all servers promise the same answer twice).
        sample: number of the sample. Equal questions are asked once for each number.
    """

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.0
    sample: int = 0


class Endpoint:
    """Chat completions from an OpenAI-compatible server. Threads may share an endpoint.

    Args:
        config: the server, its model, and the bounds.
        journal: stores answers and holds the budget; without one, nothing outlives this object.

    Attributes:
        asked: number of questions so far; `known` of them were answered from the journal.
        where, name: names for messages: the address, and the server's name for the model.

    Raises:
        UserError: the `openai` package is missing, no address or model is named, or the key's variable is not set.
    """

    def __init__(self, config: EndpointConfig, journal: Journal | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise UserError(f"endpoints need the openai package; {install('endpoint')}") from error
        if problem := require_address(config, "endpoint").problem():
            raise UserError(f"endpoint: {problem}")
        for name in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):  # below WARNING, they log what is sent
            logging.getLogger(name).setLevel(logging.WARNING)
        self.config, self.journal = config, Journal() if journal is None else journal
        self.where, self.name = config.base_url, config.model
        self.asked = self.known = 0
        self._errors, self._key = openai, config.key()
        self._client: Any = None
        self._free = asyncio.Semaphore(config.concurrency)
        self._gate = Gate(self.journal)
        self._same: dict[str, asyncio.Task[str]] = {}

    def complete(self, messages: Sequence[Message], max_tokens: int, temperature: float, sample: int = 0) -> str:
        """Return the answer to one question; see `Ask` and `complete_all`."""
        return self.complete_all([Ask(messages, max_tokens, temperature, sample)])[0]

    def complete_all(self, asks: Sequence[Ask], progress: Callable[[int], None] = lambda done: None) -> list[str]:
        """Return the server's answers (its first choices), in order; "" if the model said nothing.

        Args:
            progress: receives the number of answered questions.

        Raises:
            UserError: a question has no usable answer after all tries, or the budget is spent. The message is one line
                that names the address. It is raised after requests under way have ended and their answers were kept.
        """
        self.asked += len(asks)
        all_answers = [self.journal.answer(self.key(ask)) for ask in asks]
        if missing := [i for i, answer in enumerate(all_answers) if answer is None]:
            done = len(asks) - len(missing)
            answers = in_loop(self._all([asks[i] for i in missing], lambda count: progress(done + count)))
            for i, answer in zip(missing, answers, strict=True):
                all_answers[i] = answer
        self.known += len(asks) - len(missing)
        return [answer or "" for answer in all_answers]

    def estimate(self, asks: Sequence[Ask]) -> Cost:
        """Estimate the largest cost of these questions, at four characters per token and answers of full length."""
        left = {self.key(ask): ask for ask in asks if self.journal.answer(self.key(ask)) is None}.values()
        read = sum(sum(len(message["content"]) for message in ask.messages) // 4 for ask in left)
        return self._cost(read, sum(ask.max_tokens for ask in left), len(left))

    def key(self, ask: Ask) -> str:
        """Return the identity of a question: a hash of the server, the model, all words and all settings."""
        sent = self._request(ask)
        text = json.dumps([self.config.base_url, self.config.api, self.config.api_version, sent, ask.sample])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _request(self, ask: Ask) -> dict[str, Any]:
        limit = "max_completion_tokens" if self.config.newer_parameters else "max_tokens"
        settings = {} if self.config.newer_parameters else {"temperature": ask.temperature}
        messages = folded(ask.messages) if self.config.fold_system else list(ask.messages)
        return {"model": self.config.model, "messages": messages, limit: ask.max_tokens, **settings}

    def _cost(self, tokens_in: int, tokens_out: int, requests: int = 1) -> Cost:
        money = (tokens_in * self.config.price_in + tokens_out * self.config.price_out) / 1e6
        return Cost(tokens_in, tokens_out, money, requests)

    # ---- in the loop -------------------------------------------------------------------------------------------------

    async def _all(self, asks: Sequence[Ask], progress: Callable[[int], None]) -> list[str]:
        """Return all answers. After a failure, let everything under way end, then raise the first failure."""
        failures: list[BaseException] = []
        done = 0

        async def answer_to(ask: Ask) -> str:
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
            progress(done)
            return answer

        answers = await asyncio.gather(*(answer_to(ask) for ask in asks))
        await self._hang_up()
        if failures:
            raise failures[0]
        return answers

    async def _hang_up(self) -> None:
        """Close the connections, unless other callers' questions are under way.

        They are closed after every call because no caller tells when it is done with an endpoint.
        """
        if self._client is not None and all(task.done() for task in self._same.values()):
            client, self._client = self._client, None
            await client.close()

    async def _once(self, ask: Ask) -> str:
        """Return the answer to a question. A question that several callers wait for is asked only once."""
        key = self.key(ask)
        cached = self.journal.answer(key)
        if cached is not None:
            return cached
        task = self._same.get(key)
        if task is None:
            task = self._same[key] = asyncio.ensure_future(self._answer(ask, key))
            task.add_done_callback(lambda _: self._same.pop(key, None))
        return await task

    async def _answer(self, ask: Ask, key: str) -> str:
        """Ask until the answer can be read. The client itself retries if the connection or the server fails."""
        if self._client is None:
            self._client = self._opened()
        size = sum(len(message["content"].encode("utf-8", "surrogatepass")) for message in ask.messages)
        attempts = Attempts(
            self._cost(size + 16 * len(ask.messages) + 64, ask.max_tokens)
        )  # a token has a byte or more
        current.set(attempts)
        most, attempts_made = self.config.retries, 0
        while True:
            client = self._client.with_options(max_retries=most - attempts_made)
            try:
                answer = await client.chat.completions.create(**self._request(ask))
                text = masked(text_of(answer), self._key)
                break
            except (self._errors.OpenAIError, *UNREADABLE) as error:
                attempts_made = max(attempts_made + 1, attempts.made)
                unreadable = isinstance(error, (*UNREADABLE, self._errors.APIResponseValidationError))
                if attempts_made > most or not unreadable:
                    raise self._failure(self._explain(error, attempts, ask)) from None
        if silent := why_silent(answer, text, ask.max_tokens):
            note_once(f"{self._about}: {silent}")
        tokens = tokens_of(answer, text)
        self.journal.settle(attempts.number, self._cost(*tokens) if tokens else attempts.most, key, text)
        # Another process may have got its answer first. Then all go on with that one, also after a kill.
        return self.journal.answer(key) or text

    def _opened(self) -> Any:
        """Open the openai client, over an HTTP client that bounds each attempt."""
        config = self.config
        settings = http_settings(config.base_url, self._key, config.timeout, config.api == "azure")
        http = bounded_client()(self._gate, config, **settings)
        shared: dict[str, Any] = {
            "api_key": self._key or "none", "timeout": config.timeout, "max_retries": config.retries,
            "http_client": http,
        }  # fmt: skip
        if config.api == "azure":
            return self._errors.AsyncAzureOpenAI(
                azure_endpoint=config.base_url, api_version=config.api_version, **shared
            )
        return self._errors.AsyncOpenAI(base_url=config.base_url, **shared)

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _explain(self, error: Exception, attempts: Attempts, ask: Ask) -> str:
        if attempts.over_budget:
            return f"the budget is spent ({self.journal.refused}); all answers are kept: raise it and run again"
        if attempts.too_large:
            return f"the answer is larger than answer_kib = {self.config.answer_kib}"
        if isinstance(error, UnreadableError):
            return str(error)
        status = getattr(error, "status_code", None)
        if status == 408 or isinstance(error, self._errors.APITimeoutError):
            return f"no answer within {self.config.timeout:g} s"
        if isinstance(error, self._errors.APIConnectionError):
            cause = error.__cause__ or error
            went = "cannot connect" if "Connect" in type(cause).__name__ else "the connection broke"
            return f"{went} ({one_line(cause)})"
        if isinstance(error, self._errors.APIStatusError):
            complaint = shown_complaint(
                masked(getattr(error, "body", None), self._key), [message["content"] for message in ask.messages]
            )
            named = "the server answers with an error" if attempts.unnumbered else f"error {status}"
            refuses_system = NO_SYSTEM.search(complaint) and not self.config.fold_system
            hint = "; fold_system = true does without that role" if refuses_system else ""
            return f"{named}{f': {complaint}' if complaint else ''}{hint}"
        why = "it is nested too deep" if isinstance(error, RecursionError) else type(error).__name__
        return f"the answer cannot be read ({why})"

    @property
    def _about(self) -> str:
        return f"endpoint {self.config.base_url} (model {self.config.model})"

    def _failure(self, why: str) -> UserError:
        if self._key:  # some servers quote a key that they refuse
            why = why.replace(self._key, "***")
        return UserError(f"{self._about}: {why}")
