"""Bodies of `POST /v1/systemone`, the protocol of TypeSafe's decision models: choices, yes/no questions and scores.

As in `protocol.py`, requests are validated by the models that the published schema is made from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reflectrl.core.prompts.questions import option_text, value_text
from reflectrl.core.terminal import printable_line
from reflectrl.serving.server.protocol import ModelInfo, Refusal
from reflectrl.serving.server.questions import FEWEST, MOST, MOST_QUESTIONS, AnswerNotes, Question, Verdict

MOST_LEVELS = 10
"""Largest number of levels of a score."""
MOST_DETAILS = 20
"""Largest number of mistakes that an answer lists."""
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
               429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip
"""Status of an error → its word in this protocol. Any other status is an "invalid_request_error"."""

Text = str | dict[str, Any] | list[Any]
"""Text, or JSON that is read as text."""
QuestionId = Annotated[str, Field(min_length=1)]


# ---- requests --------------------------------------------------------------------------------------------------------


class _Read(BaseModel):
    """Part of a request. Unknown fields are ignored, as the protocol asks."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class NoulCriteria(_Read):
    """Descriptions of the two answers to a yes/no question."""

    model_config = ConfigDict(strict=True, extra="forbid")

    true: Text | None = Field(None, description="What counts as yes.")
    false: Text | None = Field(None, description="What counts as no.")


class NoulQuestion(_Read):
    """A yes/no question. It needs instructions or a description of an answer."""

    type: Literal["noul"]
    instructions: Text | None = None
    criteria: NoulCriteria | None = None

    @model_validator(mode="after")
    def _says_something(self) -> NoulQuestion:
        described = self.criteria is not None and (self.criteria.true is not None or self.criteria.false is not None)
        if self.instructions is None and not described:
            raise ValueError("there must be instructions, or criteria that describe yes or no")
        return self

    def options(self) -> tuple[str, ...]:
        """Return the texts of the answers, yes first."""
        criteria = self.criteria or NoulCriteria(true=None, false=None)
        return option_text("yes", criteria.true), option_text("no", criteria.false)


class ChoiceQuestion(_Read):
    """A question with named options."""

    type: Literal["choice"]
    instructions: Text | None = None
    criteria: Annotated[dict[str, Text | None], Field(min_length=FEWEST, max_length=MOST)] = Field(
        description="Name of each option → its description, or null."
    )

    def options(self) -> tuple[str, ...]:
        """Return the texts of the options."""
        return tuple(option_text(name, description) for name, description in self.criteria.items())


class ScoreQuestion(_Read):
    """A question for a level on a scale."""

    type: Literal["score"]
    instructions: Text | None = None
    criteria: Annotated[list[Text], Field(min_length=FEWEST, max_length=MOST_LEVELS)] = Field(
        description="Descriptions of the levels, lowest first."
    )

    def options(self) -> tuple[str, ...]:
        """Return the texts of the levels."""
        return tuple(map(value_text, self.criteria))


AnyQuestion = Annotated[NoulQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class SystemOneRequest(_Read):
    """Questions about a state. Each is answered by itself."""

    model: Annotated[str, Field(max_length=1000, description="The agent, as GET /v1/models names it, or jev-latest.")]
    state: Text = Field(
        description="What the questions are about. An environment's observation is an object with `state`, `actions`"
        " and perhaps `history`, or a text that ends by listing its actions as in a chat."
    )
    questions: Annotated[dict[QuestionId, AnyQuestion], Field(min_length=1, max_length=MOST_QUESTIONS)]
    assets: None = Field(None, description="Images cannot be read.")

    def posed(self) -> list[Question]:
        """Return the questions as an agent is asked them."""
        return [
            Question(
                name, question.instructions, question.options(),
                actions=tuple(question.criteria) if isinstance(question, ChoiceQuestion) else (),
            )
            for name, question in self.questions.items()
        ]  # fmt: skip


class Invalid(Refusal):
    """A request of this protocol that cannot be answered, with a list of its mistakes.

    Attributes:
        details: mistakes, each with its place (`loc`), a sentence (`msg`) and a word for programs (`type`).
    """

    def __init__(self, details: Sequence[Mapping[str, Any]]) -> None:
        first = details[0]
        location = ".".join(map(str, first["loc"][1:])) or None
        super().__init__(422, str(first["msg"]), str(first["type"]), location)
        self.details = [dict(detail) for detail in details]


def invalid(message: str, kind: str, *location: str | int) -> Invalid:
    """Return the refusal of a request with a single mistake."""
    return Invalid([{"loc": ["body", *location], "msg": printable_line(message), "type": kind}])


def untrained(names: Sequence[str]) -> Invalid:
    """Return the refusal of a request with questions that the agent was never trained for."""
    why = "the agent was never trained for this question, and this server refuses such questions"
    return Invalid([{"loc": ["body", "questions", name], "msg": why, "type": "untrained_question"} for name in names])


def read_systemone(body: bytes) -> SystemOneRequest:
    """Parse a request from its JSON. Raise `Invalid` if anything is wrong with it."""
    try:
        request = SystemOneRequest.model_validate_json(body)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_context=False, include_input=False)[:MOST_DETAILS]
        raise Invalid(
            [{"loc": ["body", *e["loc"]], "msg": printable_line(e["msg"]), "type": e["type"]} for e in mistakes]
        ) from None
    try:
        json.loads(body, object_pairs_hook=_without_duplicates, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise invalid(str(error), "value_error") from None
    return request


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that occurs twice: of two equal options or ids, a parser would silently keep the last."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:100]!r} occurs twice in an object")
    return members


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


# ---- answers ---------------------------------------------------------------------------------------------------------


class NoulAnswer(AnswerNotes):
    """The probability of yes."""

    type: Literal["noul"]
    noul: float


class ChoiceAnswer(AnswerNotes):
    """The most probable option, and the probability of each."""

    type: Literal["choice"]
    choice: str
    probabilities: dict[str, float]
    confidence: float


class ScoreAnswer(AnswerNotes):
    """The expected level, and the probability of each."""

    type: Literal["score"]
    score: float
    legend: dict[str, str]
    probabilities: dict[str, float]
    confidence: float


class TokenUsage(BaseModel):
    """Numbers of tokens that were read and written, over all questions."""

    input_tokens: int
    output_tokens: int


class SystemOneResponse(BaseModel):
    """Answers by the ids of their questions."""

    model: str
    answers: dict[str, Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]]
    usage: TokenUsage


class ModelEntry(BaseModel):
    """A name by which the agent can be asked for, as this protocol lists it."""

    name: str
    description: str
    release_date: str


class ModelsOfBoth(BaseModel):
    """The list of served agents, in OpenAI's form (`data`) and in this protocol's (`models`)."""

    object: Literal["list"]
    data: list[ModelInfo]
    models: list[ModelEntry]


def answer_body(model: str, request: SystemOneRequest, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the body of an answer. The verdicts are in the order of the questions."""
    answers = {
        name: _answer(question, verdict)
        for (name, question), verdict in zip(request.questions.items(), verdicts, strict=True)
    }
    usage = {
        "input_tokens": sum(verdict.tokens_read for verdict in verdicts),
        "output_tokens": sum(verdict.tokens_written for verdict in verdicts),
    }
    return {"model": model, "answers": answers, "usage": usage}


def _answer(asked: NoulQuestion | ChoiceQuestion | ScoreQuestion, verdict: Verdict) -> dict[str, Any]:
    common = {"type": asked.type, **verdict.notes()}
    if isinstance(asked, NoulQuestion):
        return {**common, "noul": verdict.probabilities[0]}
    if isinstance(asked, ChoiceQuestion):
        names = tuple(asked.criteria)
        probabilities = dict(zip(names, verdict.probabilities, strict=True))
        return {
            **common,
            "choice": names[verdict.best],
            "probabilities": probabilities,
            "confidence": verdict.confidence,
        }
    levels = [str(level) for level in range(len(asked.criteria))]
    return {
        **common,
        "score": verdict.score,
        "legend": dict(zip(levels, asked.options(), strict=True)),
        "probabilities": dict(zip(levels, verdict.probabilities, strict=True)),
        "confidence": verdict.score_confidence,
    }


# ---- errors ----------------------------------------------------------------------------------------------------------


class Mistake(BaseModel):
    """A mistake in a request: its place, a sentence, and a word for programs."""

    loc: list[str | int]
    msg: str
    type: str


class Mistakes(BaseModel):
    """The body of answers with status 422."""

    detail: list[Mistake]


class ProblemInfo(BaseModel):
    """Description of an error."""

    error_type: str
    message: str


class Problem(BaseModel):
    """The body of every other answer that is not 200."""

    detail: ProblemInfo


def error_body(refusal: Refusal) -> dict[str, Any]:
    """Return an error in this protocol's form."""
    if isinstance(refusal, Invalid):
        return {"detail": refusal.details}
    message = refusal.body()["error"]["message"]
    kind = ERROR_TYPES.get(refusal.status, "invalid_request_error")
    return {"detail": {"error_type": kind, "message": message}}
