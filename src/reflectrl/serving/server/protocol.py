"""Bodies of requests and answers, in the form of OpenAI's chat completions, and their limits.

Requests are validated by these models, and the published schema is made from them, so the two cannot differ.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from reflectrl.core.plugins import suggestion
from reflectrl.core.terminal import printable_line

MOST = 1000
"""Largest number of messages in a request, and of actions in an observation."""
WIDEST = 64
"""Largest number of characters per token of the context. A longer text is refused before it is tokenised."""
IGNORED = "Accepted without effect: an answer is one listed action."

Action = Annotated[str, Field(min_length=1, max_length=1000, description="One line of printable text.")]


class Refusal(Exception):
    """A request that is answered by an error.

    Attributes:
        status: HTTP status, 4xx or 5xx.
        param: the field at fault, or None.
        code: a word for programs.
    """

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, headers or {}

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's form."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        message = printable_line(" ".join(str(self).split()))
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


# ---- requests --------------------------------------------------------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextPart(BaseModel):
    """A part of a message. Only text can be read."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of the conversation. Fields that clients add to messages that they send back are ignored."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    reasoning_content: Any = None
    """Reflection of an earlier answer, for agents that carry their reflections. Anything but a text is ignored."""

    @property
    def text(self) -> str:
        """The message's parts as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ObservationField(_Strict):
    """An observation as programs send it (`extra_body={"reflectrl": {...}}`). It is read instead of the messages."""

    history: str = Field("", description="The text before the state, which only grows within an episode.")
    state: str = Field(description="The current state.")
    actions: Annotated[list[Action], Field(min_length=1, max_length=MOST)] = Field(description="The legal actions.")
    rewards: Annotated[list[float], Field(max_length=100_000)] = Field(
        default=[], description="Rewards of the steps so far; only agents that are asked for a return read them."
    )
    carried: str = Field(
        "", description="Reflection of the previous answer; only agents that carry their reflections read it."
    )


class ObservedState(ObservationField):
    """An observation as the state of a decision model's request, whose options may stand for the actions."""

    actions: Annotated[list[Action], Field(max_length=MOST)] = []


class StreamOptions(_Strict):
    """Options of streamed answers."""

    include_usage: bool | None = Field(None, description="Whether a last chunk counts tokens.")
    include_obfuscation: bool | None = Field(None, description=IGNORED)


class TextFormat(_Strict):
    """The only form of an answer: text."""

    type: Literal["text"]


Nothing = Annotated[list[Any], Field(max_length=0)]
"""A list that asks for nothing. Clients send it for options that they do not use."""
Empty = Annotated[dict[str, Any], Field(max_length=0)]
"""An object that asks for nothing."""


class ChatRequest(_Strict):
    """A request for one action. Options that are unsupported and would change the answer (tools, say) are refused.

    Clients spell out defaults, such as an empty list of tools. Such a value asks for nothing, so it is accepted.
    """

    model: Annotated[str, Field(max_length=1000, description="The agent, as GET /v1/models names it.")]
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST)]
    reflectrl: ObservationField | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="0, the default, takes the most probable action; above, one is drawn."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(None, description="Seed of the draw.")
    n: Literal[1] | None = None
    top_p: Literal[1] | None = None
    tools: Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    stop: Nothing | None = None
    logprobs: Literal[False] | None = Field(None, description="`reflectrl` holds the probabilities of all actions.")
    top_logprobs: Literal[0] | None = None
    logit_bias: Empty | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description=IGNORED)
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description=IGNORED)
    frequency_penalty: float | None = Field(None, description=IGNORED)
    presence_penalty: float | None = Field(None, description=IGNORED)
    reasoning_effort: str | None = Field(None, description=IGNORED)
    user: str | None = Field(None, description=IGNORED)
    safety_identifier: str | None = Field(None, description=IGNORED)
    metadata: dict[str, Any] | None = Field(None, description=IGNORED)
    store: bool | None = Field(None, description=IGNORED)
    service_tier: str | None = Field(None, description=IGNORED)
    parallel_tool_calls: bool | None = Field(None, description=IGNORED)
    verbosity: str | None = Field(None, description=IGNORED)
    prompt_cache_key: str | None = Field(None, description=IGNORED)
    prompt_cache_retention: str | None = Field(None, description=IGNORED)


def first_mistake(error: ValidationError) -> tuple[str, ErrorDetails]:
    """Return a mistake to report, and its place in dots, without the names of the forms that were tried.

    If a field may have several forms, the deepest mistake is in the form that the content resembles most.
    """
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    first = max(reversed(mistakes), key=lambda mistake: len(mistake["loc"]))
    parts = [str(part) for part in first["loc"]]
    return ".".join(part for part in parts if part != "str" and not part.startswith("list["))[:200], first


def read_request(body: bytes) -> ChatRequest:
    """Parse a request from its JSON. Raise a Refusal that names the first wrong field."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        field, first = first_mistake(error)
        if first["type"] == "json_invalid":
            raise Refusal(400, f"the body is not JSON: {first['msg'].partition(': ')[2]}", "invalid_json") from None
        if first["type"] == "extra_forbidden":
            near = suggestion(field, ChatRequest.model_fields)
            raise Refusal(400, f"unknown or unsupported field {field!r}{near}", "unknown_field", field) from None
        raise Refusal(400, f"{field or 'the body'}: {first['msg']}", "invalid_value", field or None) from None


# ---- answers, for the published schema -------------------------------------------------------------------------------


class Choice(BaseModel):
    """The chosen action, and the probability of each action."""

    action: int = Field(description="Index of the chosen action.")
    probabilities: list[float] = Field(description="Probability of each action, in the order of the request.")


class AnswerMessage(BaseModel):
    """The action as content, the reflection as reasoning text."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str | None


class AnswerChoice(BaseModel):
    """The only choice of an answer."""

    index: Literal[0]
    message: AnswerMessage
    finish_reason: Literal["stop"]
    reflectrl: Choice


class CompletionDetails(BaseModel):
    """Tokens of the answer by kind."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Numbers of tokens in the policy's prompt, and in reflection and action."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails


class ChatCompletion(BaseModel):
    """An answer that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage


class ModelInfo(BaseModel):
    """The agent that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    reflectrl: dict[str, Any]


class ErrorInfo(BaseModel):
    """Description of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The body of an error. /v1/systemone has its own form."""

    error: ErrorInfo


class Health(BaseModel):
    """The server is up."""

    status: Literal["ok"]
