"""A language model behind an OpenAI-compatible address: a server of one's own, or somebody else's.

Nothing is sent anywhere unless a recipe names an address; what is sent is then the text of the prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reflectrl.plugins import one_line
from reflectrl.types import UserError

Message = dict[str, str]
"""One chat message: {"role": "system" | "user" | "assistant", "content": text}."""


def without_thinking(answer: str) -> str:
    """The answer without the <think> ... </think> part that some servers pass on; "" if the thinking never ended."""
    return re.sub(r"<think>.*?(</think>|\Z)", "", answer, flags=re.DOTALL).rpartition("</think>")[2].strip()


class Endpoint:
    """Chat completions from an OpenAI-compatible server, through the `openai` client; safe to share by threads.

    Connection failures, timeouts, and answers 408, 409, 429 and 5xx are tried again by the client itself, with growing
    pauses.

    Args:
        base_url: where the API begins, such as "http://127.0.0.1:8000/v1".
        model: the server's name for the model.
        api_key: key, if the server asks for one. Never taken from the environment: a key meant for one server is not
            sent to another.
        timeout: seconds to wait for one answer (each retry waits anew).
        max_retries: tries after the first.

    Raises:
        UserError: the `openai` package is missing, or the address is none.
    """

    def __init__(
        self, base_url: str, model: str, api_key: str = "", timeout: float = 60.0, max_retries: int = 4
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise UserError("endpoints need the openai package: pip install reflectrl[endpoint]") from error
        if not base_url.startswith(("http://", "https://")):
            raise UserError(f"endpoint {base_url!r}: the address must begin with http:// or https://")
        self.base_url, self.model, self.timeout = base_url, model, timeout
        self._api_key, self._errors = api_key, openai
        self._client = openai.OpenAI(
            base_url=base_url, api_key=api_key or "none", timeout=timeout, max_retries=max_retries
        )

    def complete(self, messages: Sequence[Message], max_tokens: int, temperature: float) -> str:
        """The server's answer to a conversation (its first choice); "" if the model said nothing.

        Args:
            messages: the conversation so far, oldest first.
            max_tokens: longest answer, in the server's tokens.
            temperature: 0 asks for the likeliest answer (servers do not all promise the same one twice).

        Raises:
            UserError: no usable answer after all tries; one line that names the address.
        """
        try:
            answer = self._client.chat.completions.create(
                model=self.model,
                messages=list(messages),  # type: ignore[arg-type]
                max_tokens=max_tokens,
                temperature=temperature,
            )
        except (self._errors.OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
            raise self._failure(self._explain(error)) from error
        try:  # the client checks no shapes: whatever JSON (or text) came back is in `answer`
            content: object = answer.choices[0].message.content
        except (AttributeError, IndexError, TypeError) as error:
            raise self._failure("the answer is not a chat completion (does the address end in /v1?)") from error
        if content is not None and not isinstance(content, str):
            raise self._failure("the answer is not a chat completion (its content is not text)")
        return content or ""

    def _explain(self, error: Exception) -> str:
        if isinstance(error, self._errors.APITimeoutError):
            return f"no answer within {self.timeout:g} s"
        if isinstance(error, self._errors.APIConnectionError):
            return f"cannot connect ({one_line(error.__cause__ or error)})"
        if isinstance(error, self._errors.APIStatusError):
            return " ".join(str(error).split())[:300]  # "Error code: 404 - ..."
        return f"the answer cannot be read ({one_line(error)})"

    def _failure(self, why: str) -> UserError:
        if self._api_key:  # some servers repeat it when they refuse it
            why = why.replace(self._api_key, "***")
        return UserError(f"endpoint {self.base_url} (model {self.model}): {why}")
