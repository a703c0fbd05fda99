"""Client of servers that play rollouts: OpenAI's completions for prompts of tokens, and vLLM's adapters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.answers import complaint_of
from reflectrl.serving.endpoints.attempts import honest_client, in_loop
from reflectrl.serving.endpoints.client import UNREADABLE
from reflectrl.serving.endpoints.config import EndpointConfig
from reflectrl.serving.endpoints.secrets import http_settings, masked
from reflectrl.serving.remote.config import RolloutsConfig

T = TypeVar("T")
Body = Mapping[str, Any]
Choice = dict[str, Any]
"""A completion of an answer, as in its JSON: "text" and "logprobs"."""


class Servers:
    """The servers of a recipe, each with the same models. Requests go to them in turn.

    The `openai` package sends the requests, and retries those that fail in transit.

    Args:
        settings: their addresses, and limits of requests.

    Attributes:
        requests: number of requests answered so far.
        seconds: time during which some request was pending.

    Raises:
        UserError: the `openai` package is missing, or the key's variable is not set. Every method raises one, with the
            server's address, if a server cannot be reached, refuses, or gives an unexpected answer.
    """

    def __init__(self, settings: RolloutsConfig) -> None:
        try:
            import openai
        except ImportError as error:
            raise UserError(f"rollouts.servers need the openai package; {install('endpoint')}") from error
        self.settings, self._openai = settings, openai
        self._key = EndpointConfig(key_env=settings.key_env).key()
        self._free = [asyncio.Semaphore(settings.concurrency) for _ in settings.servers]
        self._clients: list[Any] = []
        self._next = self.requests = 0
        self.seconds = 0.0

    def complete(self, asks: Sequence[Body]) -> list[list[Choice]]:
        """Return the completions of each request's prompts, in their order.

        Args:
            asks: bodies of requests to /completions, whose "prompt" is a list of token ids per prompt.
        """
        started = time.perf_counter()
        servers = [(self._next + i) % len(self._free) for i in range(len(asks))]
        self._next += len(asks)
        posts = (self._post(server, "/completions", ask) for server, ask in zip(servers, asks, strict=True))
        answers = in_loop(self._all(posts))
        self.requests += len(asks)
        self.seconds += time.perf_counter() - started
        return [
            self._choices(server, answer, len(ask["prompt"]))
            for server, answer, ask in zip(servers, answers, asks, strict=True)
        ]

    def load(self, name: str, folder: str) -> None:
        """Let every server load the weights in a folder under a name."""
        body = {"lora_name": name, "lora_path": folder}
        in_loop(self._all(self._post(server, "/load_lora_adapter", body, str) for server in range(len(self._free))))

    def unload(self, prefix: str, spared: str = "") -> None:
        """Let every server unload all weights whose name begins with `prefix`, except `spared`."""
        in_loop(self._all(self._unload(server, prefix, spared) for server in range(len(self._free))))

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        in_loop(self._hang_up())

    # ---- in the loop -------------------------------------------------------------------------------------------------

    async def _all(self, posts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Return all results, or raise the first failure.

        After a failure, no request is pending and no connection is open.
        """
        tasks = [asyncio.ensure_future(post) for post in posts]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._hang_up()
            raise

    async def _unload(self, server: int, prefix: str, spared: str) -> None:
        answered = await self._send(server, "GET", "/models", None, object)
        try:
            names = [str(model["id"]) for model in answered["data"]]
        except (KeyError, TypeError):
            raise self._failure(server, "its list of models cannot be read (does the address end in /v1?)") from None
        for name in names:
            if name.startswith(prefix) and name != spared:
                await self._post(server, "/unload_lora_adapter", {"lora_name": name}, str)

    async def _post(self, server: int, path: str, body: Body, kind: type = object) -> Any:
        return await self._send(server, "POST", path, body, kind)

    async def _send(self, server: int, method: str, path: str, body: Body | None, kind: type) -> Any:
        """Send a request and return the server's answer: JSON (`object`), or text (`str`)."""
        if not self._clients:
            self._clients = [self._opened(address) for address in self.settings.servers]
        client, settings = self._clients[server], self.settings
        try:
            async with self._free[server], asyncio.timeout(settings.timeout * (settings.retries + 1)):
                if method == "GET":
                    return await client.get(path, cast_to=kind)
                return masked(await client.post(path, body=body, cast_to=kind), self._key)
        except (TimeoutError, *UNREADABLE, self._openai.OpenAIError) as error:
            raise self._failure(server, self._explain(error, path)) from None

    def _opened(self, address: str) -> Any:
        http = honest_client()(**http_settings(address, self._key, self.settings.timeout))
        return self._openai.AsyncOpenAI(
            base_url=address, api_key=self._key or "none", timeout=self.settings.timeout,
            max_retries=self.settings.retries, http_client=http,
        )  # fmt: skip

    async def _hang_up(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _choices(self, server: int, answer: Any, count: int) -> list[Choice]:
        try:
            answered = sorted(answer["choices"], key=lambda choice: choice["index"])
            complete = [choice["index"] for choice in answered] == list(range(count))
        except (KeyError, TypeError):
            complete = False
        if not complete:
            raise self._failure(server, f"the answer is not {count} completions (does the address end in /v1?)")
        return answered

    def _explain(self, error: Exception, path: str) -> str:
        if isinstance(error, TimeoutError | self._openai.APITimeoutError):
            return f"no answer within {self.settings.timeout:g} s"
        if isinstance(error, self._openai.APIConnectionError):
            return f"cannot connect ({one_line(error.__cause__ or error)})"
        if not isinstance(error, self._openai.APIStatusError):
            why = "it is nested too deep" if isinstance(error, RecursionError) else type(error).__name__
            return f"the answer cannot be read ({why})"
        hint = "; vLLM needs --enable-lora, VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if error.status_code == 404 else ""
        complaint = " ".join(complaint_of(masked(error.body, self._key)).split())[:300]
        return f"error {error.status_code} from {path}{f': {complaint}' if complaint else ''}" + (
            hint if "adapter" in path else ""
        )

    def _failure(self, server: int, why: str) -> UserError:
        if self._key:  # some servers quote a key that they refuse
            why = why.replace(self._key, "***")
        return UserError(f"rollouts: server {self.settings.servers[server]}: {why}; what was saved is kept")
