"""Bodies of `POST /v1/decisions`, OpenAI's protocol of decision models: predicates, choices and scores.

As in `protocol.py`, requests are validated by the models that the published schema is made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from reflectrl.core.prompts.questions import option_text, value_text
from reflectrl.serving.server.observations import state_of_json, state_of_messages
from reflectrl.serving.server.protocol import MOST as MOST_MESSAGES
from reflectrl.serving.server.protocol import Message, Refusal, first_mistake
from reflectrl.serving.server.questions import FEWEST, MOST, MOST_QUESTIONS, AnswerNotes, Question, State, Verdict

MOST_LEVELS = 10
"""Largest number of levels of a score."""
NOT_READ = "Accepted without effect."

# ---- requests --------------------------------------------------------------------------------------------------------


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class InputText(_Read):
    """A part that is text. An earlier answer's parts are called output text."""

    type: Literal["input_text", "output_text"]
    text: str


class InputJSON(_Read):
    """A part that is JSON, read as text."""

    type: Literal["input_json"]
    data: dict[str, JsonValue] | list[dict[str, JsonValue]]


Parts = str | list[Annotated[InputText | InputJSON, Field(discriminator="type")]]
"""Text, or its parts. Images cannot be read."""


class InputMessage(_Read):
    """A message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "developer", "system", "assistant"]
    content: Parts


class DecisionPredicate(_Read):
    """A statement about the input."""

    type: Literal["predicate"]
    name: str | None = None
    instructions: Parts

    def options(self) -> tuple[str, ...]:
        """Return the texts of the answers, yes first."""
        return "yes", "no"


class DecisionOption(_Read):
    """An option of a choice."""

    value: str | bool
    description: str | None = None


class DecisionChoice(_Read):
    """A choice among options."""

    type: Literal["choice"]
    name: str | None = None
    instructions: Parts
    choices: Annotated[list[DecisionOption], Field(min_length=FEWEST, max_length=MOST)]

    def options(self) -> tuple[str, ...]:
        """Return the texts of the options."""
        return tuple(option_text(value_text(choice.value), choice.description) for choice in self.choices)


class DecisionLevel(_Read):
    """A level of a score."""

    label: str
    description: str | None = None


class DecisionScore(_Read):
    """A score on a scale of levels, lowest first."""

    type: Literal["score"]
    name: str | None = None
    instructions: Parts
    levels: Annotated[list[DecisionLevel], Field(min_length=FEWEST, max_length=MOST_LEVELS)]

    def options(self) -> tuple[str, ...]:
        """Return the texts of the levels."""
        return tuple(option_text(level.label, level.description) for level in self.levels)


AnyDecision = Annotated[DecisionPredicate | DecisionChoice | DecisionScore, Field(discriminator="type")]


class DecisionRequest(_Read):
    """Questions about an input. Each is answered by itself, and unknown fields are ignored."""

    model: Annotated[str, Field(max_length=1000, description="The agent, as GET /v1/models names it.")]
    input: str | Annotated[list[InputMessage], Field(min_length=1, max_length=MOST_MESSAGES)] = Field(
        description="What the questions are about. An environment's observation ends by listing its actions, as in a"
        " chat."
    )
    questions: Annotated[list[AnyDecision], Field(min_length=1, max_length=MOST_QUESTIONS)]
    prompt_cache_key: str | None = Field(None, description=NOT_READ)
    safety_identifier: str | None = Field(None, description=NOT_READ)

    def state(self) -> State:
        """Return what the questions are about."""
        if isinstance(self.input, str):
            return state_of_json(self.input)
        return state_of_messages([Message(role=message.role, content=_text(message.content)) for message in self.input])

    def posed(self) -> list[Question]:
        """Return the questions as an agent is asked them."""
        return [
            Question(
                question.name or str(index), _text(question.instructions) or None, question.options(),
                actions=_names(question) if isinstance(question, DecisionChoice) else (),
            )
            for index, question in enumerate(self.questions)
        ]  # fmt: skip


def read_decisions(body: bytes) -> DecisionRequest:
    """Parse a request from its JSON. Raise a Refusal that names the first mistake."""
    try:
        request = DecisionRequest.model_validate_json(body)
    except ValidationError as error:
        field, first = first_mistake(error)
        raise Refusal(422, f"{field or 'the body'}: {first['msg']}", first["type"], field or None) from None
    for index, question in enumerate(request.questions):
        where = f"questions.{index}"
        if isinstance(question, DecisionChoice) and len({(type(o.value), o.value) for o in question.choices}) < len(
            question.choices
        ):
            raise Refusal(422, f"{where}.choices: two choices are equal", "duplicate", f"{where}.choices")
    names = [question.name for question in request.questions if question.name is not None]
    if len(set(names)) < len(names):
        raise Refusal(422, "questions: two of them have the same name", "duplicate", "questions")
    return request


def _text(parts: str | Sequence[InputText | InputJSON]) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(part.text if isinstance(part, InputText) else value_text(part.data) for part in parts)


def _names(asked: DecisionChoice) -> tuple[str, ...]:
    """Return the options' names if all are texts, as the actions of an agent are."""
    names = tuple(choice.value for choice in asked.choices if isinstance(choice.value, str))
    return names if len(names) == len(asked.choices) else ()


# ---- answers ---------------------------------------------------------------------------------------------------------


class _Answer(AnswerNotes):
    name: str | None


class PredicateAnswer(_Answer):
    """The probability that the statement is true."""

    type: Literal["predicate"]
    probability: float


class OptionProbability(BaseModel):
    """The probability of an option."""

    value: str | bool
    probability: float


class DecisionChoiceAnswer(_Answer):
    """The most probable option, and the probability of each."""

    type: Literal["choice"]
    choice: str | bool
    confidence: float
    probabilities: list[OptionProbability]


class LevelProbability(BaseModel):
    """The probability of a level."""

    label: str
    value: int
    probability: float


class DecisionScoreAnswer(_Answer):
    """The expected level, and the probability of each."""

    type: Literal["score"]
    score: float
    confidence: float
    probabilities: list[LevelProbability]


class RefusalAnswer(BaseModel):
    """No answer, since the agent was never trained for such a question and the server was told to refuse it."""

    type: Literal["refusal"]
    name: str | None


class InputDetails(BaseModel):
    """Tokens of prompts by kind."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """Tokens of texts by kind."""

    reasoning_tokens: int


class DecisionUsage(BaseModel):
    """Numbers of tokens that were read and written, over all questions."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Decision(BaseModel):
    """Answers in the order of their questions."""

    model: str
    answers: list[
        Annotated[
            PredicateAnswer | DecisionChoiceAnswer | DecisionScoreAnswer | RefusalAnswer, Field(discriminator="type")
        ]
    ]
    usage: DecisionUsage


def decision_body(model: str, request: DecisionRequest, verdicts: Sequence[Verdict | None]) -> dict[str, Any]:
    """Return the body of an answer. The verdicts are in the order of the questions, None for refused ones."""
    decided = [verdict for verdict in verdicts if verdict is not None]
    read, written = sum(verdict.tokens_read for verdict in decided), sum(verdict.tokens_written for verdict in decided)
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": written},
        "total_tokens": read + written,
    }
    answers = [_answer(question, verdict) for question, verdict in zip(request.questions, verdicts, strict=True)]
    return {"model": model, "answers": answers, "usage": usage}


def _answer(asked: DecisionPredicate | DecisionChoice | DecisionScore, verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"type": "refusal", "name": asked.name}
    common: dict[str, Any] = {"type": asked.type, "name": asked.name, **verdict.notes()}
    if isinstance(asked, DecisionPredicate):
        return {**common, "probability": verdict.probabilities[0]}
    if isinstance(asked, DecisionChoice):
        values = [choice.value for choice in asked.choices]
        listed = [{"value": v, "probability": p} for v, p in zip(values, verdict.probabilities, strict=True)]
        return {**common, "choice": values[verdict.best], "confidence": verdict.confidence, "probabilities": listed}
    levels = [
        {"label": level.label, "value": value, "probability": probability}
        for value, (level, probability) in enumerate(zip(asked.levels, verdict.probabilities, strict=True))
    ]
    return {**common, "score": verdict.score, "confidence": verdict.score_confidence, "probabilities": levels}
