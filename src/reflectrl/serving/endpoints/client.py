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
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line
from reflectrl.core.prompts.messages import folded
from reflectrl.core.terminal import note_once
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import (
    Answer,
    UnreadableError,
    ending_of,
    refusal_of,
    remark_on,
    shown_complaint,
    text_of,
    tokens_of,
)
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


class RefusedError(UserError):
    """A refusal that may be about one question or about all of them. Other questions tell."""


class Endpoint:
    """Chat completions from an OpenAI-compatible server. Threads may share an endpoint.

    The fields of a request are `model`, `messages`, `max_tokens` (or `max_completion_tokens`), `temperature` and
    `stream`, which is false. Fields that some servers do not accept are left out: `stop`, `seed`, `n`, `top_p`,
    `response_format`, `tools`, `logprobs`, `user` and `stream_options`.

    The fields of an answer that are read: `choices[0].message.content` and `.refusal`, `choices[0].finish_reason`,
    `usage` and `model`; in event streams `choices[0].delta` in place of the message. Reasoning (`reasoning_content`,
    `reasoning`), `tool_calls`, further choices, `id`, `created`, `logprobs` and `system_fingerprint` are not needed.

    Args:
        config: the server, its model, and the bounds.
        journal: stores answers and holds the budget; without one, nothing outlives this object.

    Attributes:
        asked: number of questions so far; `known` of them were answered from the journal.
        endings: number of answers so far that are not complete, by their end.
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
        self.endings: Counter[str] = Counter()
        self._errors, self._key = openai, config.key()
        self._client: Any = None
        self._free = asyncio.Semaphore(config.concurrency)
        self._gate = Gate(self.journal)
        self._same: dict[str, asyncio.Task[Answer]] = {}

    def complete(self, messages: Sequence[Message], max_tokens: int, temperature: float, sample: int = 0) -> Answer:
        """Return the answer to one question; see `Ask` and `complete_all`."""
        return self.complete_all([Ask(messages, max_tokens, temperature, sample)])[0]

    def complete_all(self, asks: Sequence[Ask], progress: Callable[[int], None] = lambda done: None) -> list[Answer]:
        """Return the server's answers (its first choices), in order; "" if the model said nothing.

        An answer says how it ended. A question that the server refuses has the answer "", unless `refused` is "stop".

        Args:
            progress: receives the number of answered questions.

        Raises:
            UserError: a question has no usable answer after all tries, or the budget is spent. The message is one line
                that names the address. It is raised after requests under way have ended and their answers were kept.
        """
        self.asked += len(asks)
        all_answers = [self._journaled(self.key(ask)) for ask in asks]
        if missing := [i for i, answer in enumerate(all_answers) if answer is None]:
            done = len(asks) - len(missing)
            others = self.asked > len(missing)  # other questions were answered, so this server and model are right
            answers = in_loop(self._all([asks[i] for i in missing], lambda count: progress(done + count), others))
            for i, answer in zip(missing, answers, strict=True):
                all_answers[i] = answer
        self.known += len(asks) - len(missing)
        complete_answers = [Answer() if answer is None else answer for answer in all_answers]
        self.endings.update(answer.ending for answer in complete_answers if answer.ending)
        return complete_answers

    def _journaled(self, key: str) -> Answer | None:
        """Return the journal's answer to a question; None if it is to be asked."""
        answer = self.journal.answer(key)
        return None if answer is not None and answer.ending == "refused" and self.config.refused == "stop" else answer

    def estimate(self, asks: Sequence[Ask]) -> Cost:
        """Estimate the largest cost of these questions, at four characters per token and answers of full length."""
        left = {self.key(ask): ask for ask in asks if self._journaled(self.key(ask)) is None}.values()
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

    async def _all(self, asks: Sequence[Ask], progress: Callable[[int], None], others: bool) -> list[Answer]:
        """Return all answers. After a failure, let everything under way end, then raise the first failure.

        Args:
            others: True if earlier questions were answered. Then a refusal is about a single question.
        """
        failures: list[BaseException] = []
        doubtful: list[RefusedError] = []
        done = answered = 0

        async def answer_to(ask: Ask) -> Answer:
            nonlocal done, answered
            async with self._free:
                if failures or (len(doubtful) > self.config.concurrency and not (others or answered)):
                    return Answer()
                try:
                    answer = await self._once(ask)
                except RefusedError as error:
                    doubtful.append(error)
                    answer = Answer("", "refused")
                except BaseException as error:
                    failures.append(error)
                    return Answer()
            done += 1
            answered += answer.ending != "refused"
            progress(done)
            return answer

        answers = await asyncio.gather(*(answer_to(ask) for ask in asks))
        await self._hang_up()
        if failures:
            raise failures[0]
        if doubtful and not (others or answered):
            raise doubtful[0]
        for ask, answer in zip(asks, answers, strict=True):
            if answer.ending == "refused" and self.journal.answer(self.key(ask)) is None:
                self._keep_refusal(self.key(ask), str(doubtful[0]))
        return answers

    async def _hang_up(self) -> None:
        """Close the connections, unless other callers' questions are under way.

        They are closed after every call because no caller tells when it is done with an endpoint.
        """
        if self._client is not None and all(task.done() for task in self._same.values()):
            client, self._client = self._client, None
            await client.close()

    async def _once(self, ask: Ask) -> Answer:
        """Return the answer to a question. A question that several callers wait for is asked only once."""
        key = self.key(ask)
        cached = self._journaled(key)
        if cached is not None:
            return cached
        task = self._same.get(key)
        if task is None:
            task = self._same[key] = asyncio.ensure_future(self._answer(ask, key))
            task.add_done_callback(lambda _: self._same.pop(key, None))
        return await task

    async def _answer(self, ask: Ask, key: str) -> Answer:
        """Ask until the answer can be read. The client itself retries if the connection or the server fails.

        Raises:
            RefusedError: the server refuses the question with words that may be about all questions.
        """
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
                answer = await client.chat.completions.create(**self._request(ask), stream=False)
                text = masked(text_of(answer), self._key)
                break
            except (self._errors.OpenAIError, *UNREADABLE) as error:
                attempts_made = max(attempts_made + 1, attempts.made)
                unreadable = isinstance(error, (*UNREADABLE, self._errors.APIResponseValidationError))
                if attempts_made > most or not unreadable:
                    return self._refused(error, attempts, ask, key)
        ending = ending_of(answer)
        if remark := remark_on(answer, text, ending, ask.max_tokens):
            note_once(f"{self._about}: {remark}")
        if other := self._other_model(answer):
            note_once(f"{self._about}: the server answers with another model, {masked(other, self._key)!r:.200}")
        tokens = tokens_of(answer, text)
        spent = self._cost(*tokens) if tokens else attempts.most
        self.journal.settle(attempts.number, spent, key, Answer(text, ending))
        # Another process may have got its answer first. Then all go on with that one, also after a kill.
        kept_answer = self.journal.answer(key)
        return Answer(text, ending) if kept_answer is None else kept_answer

    def _other_model(self, answer: Any) -> str:
        """Return the name of the model that has answered if it is another one than was asked for; "" otherwise.

        Servers add versions, folders or tags to a name, and Azure's deployments have names of their own.
        """
        name = getattr(answer, "model", None)
        if not isinstance(name, str) or self.config.api == "azure":
            return ""
        asked, answering = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (self.config.model, name))
        return "" if not answering or asked in answering or answering in asked else name

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

    # ---- refused questions -----------------------------------------------------------------------------------------

    def _refused(self, error: Exception, attempts: Attempts, ask: Ask, key: str) -> Answer:
        """Return the answer to a question that the server refuses.

        Raises:
            RefusedError: it may refuse all questions.
            UserError: it has failed for another reason, or a refusal is to end the run.
        """
        why = self._explain(error, attempts, ask)
        is_status = isinstance(error, self._errors.APIStatusError) and not (attempts.over_budget or attempts.too_large)
        status, body = getattr(error, "status_code", None), getattr(error, "body", None)
        reason = refusal_of(status, body) if is_status else ""
        if reason == "length":
            why += "; a smaller `history` of the player or teacher (`longest` of the judge) shortens what is sent"
        if reason and self.config.refused == "stop":
            why += '; with refused = "lost" or "unread", the others go on'
        if not reason or self.config.refused == "stop":
            raise self._failure(why) from None
        if reason == "unclear":
            raise RefusedError(str(self._failure(why))) from None
        return self._keep_refusal(key, str(self._failure(why)))

    def _keep_refusal(self, key: str, why: str) -> Answer:
        """Keep the refusal of a question, which has cost nothing, so that a resumed run takes the same steps."""
        note_once(f"{why}; the episode counts as {self.config.refused}")
        answer = Answer("", "refused")
        self.journal.settle("", Cost(requests=0), key, answer)
        return answer

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
            complaint = complaint.rstrip(".")
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
