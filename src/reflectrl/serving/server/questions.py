"""Questions to an agent as decision models are asked them: a state, listed options, and a probability for each option.

An agent was trained for one question: what to do next, given an observation and its legal actions. A choice asks this
question in three cases. Then the agent chooses as in play:

- The state is an observation that lists its actions, and the options are among them. The agent reads all actions in the
  environment's order.
- The state is an observation without a list, so the options are the actions. The agent must have been trained on
  actions in any order (by their texts, or under shuffled labels), since a question's options have none.
- The environment itself translates the question (`TextEnv.read_question`).

The agent was never trained for any other question. The language model underneath answers it: each option gets the
probability of its text after the state, per token. The ranking may be useful, but the certainty is not, so the
probabilities are shrunk towards uniform ones until no confidence exceeds `UNTRAINED`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field

from reflectrl.core.prompts.questions import instructions_text
from reflectrl.core.types import Choice, Observation, Reflection, Turn

UNTRAINED = 0.1
"""Weight of the model's probabilities, mixed with uniform ones, in answers to untrained questions.

Confidence shrinks by the same factor, so it never exceeds this number there.
"""
ALIAS = "jev-latest"
"""Name that clients of decision models send by default. It means the served agent."""
FEWEST, MOST = 2, 255
"""Smallest and largest number of options."""
MOST_QUESTIONS = 400
"""Largest number of questions in a request."""


@dataclass(frozen=True)
class State:
    """State of a request, which all its questions are about.

    Attributes:
        value: the state as the request has it.
        text: the whole state as text.
        observation: the same as an observation, perhaps without actions; None if it has no such form.
        rewards: rewards of the steps so far, if an observation came with them.
    """

    value: Any
    text: str
    observation: Observation | None = None
    rewards: tuple[float, ...] = ()


@dataclass(frozen=True)
class Question:
    """Question of a request.

    Attributes:
        name: name by which errors refer to it.
        instructions: the question itself, as JSON; None if the options say enough.
        options: text of each option as it is read.
        actions: name of each option, if the question is a choice; else empty. Only a choice can ask for an action.
    """

    name: str
    instructions: Any
    options: tuple[str, ...]
    actions: tuple[str, ...] = ()


Reading = tuple[Observation, Sequence[int]]
"""A question as an observation, and for each option the index of its action."""
ReadQuestion = Callable[[Any, Any, Sequence[str]], Reading | None]
"""An environment's translation of a state, instructions and the names of options (`TextEnv.read_question`)."""


def no_reading(state: Any, instructions: Any, options: Sequence[str]) -> Reading | None:
    """Return None, for an environment that translates no questions."""
    return None


@dataclass(frozen=True)
class Familiar:
    """Kinds of questions that an agent was trained for, beside observations that list their actions.

    Attributes:
        in_any_order: True if the agent was trained on actions in any order.
        read_question: the environment's translation of a client's question.
    """

    in_any_order: bool = False
    read_question: ReadQuestion = no_reading

    def reading(self, state: State, question: Question, names: Sequence[str]) -> Reading | None:
        """Return a choice as the environment shows it; None if the agent was never trained for such a choice.

        Args:
            names: names of the options, sorted.
        """
        if not question.actions:
            return None
        if (seen := state.observation) is not None:
            listed = Observation(seen.history, seen.state, tuple(names), seen.carried)
            return (listed, range(len(names))) if self.in_any_order and not seen.actions else None
        try:
            read = self.read_question(state.value, question.instructions, names)
            fits = read is not None and len(read[1]) == len(names) and set(read[1]) <= set(range(len(read[0].actions)))
        except Exception:  # clients send any text, and an environment's error must not end a request
            return None
        return read if fits else None


@dataclass(frozen=True)
class Posed:
    """Question in the form in which an agent reads it.

    Attributes:
        observation: observation whose actions are chosen from.
        order: for each option of the question, the index of its action.
        is_trained: True if the agent was trained for this kind of question.
    """

    observation: Observation
    order: tuple[int, ...]
    is_trained: bool


@dataclass(frozen=True)
class Verdict:
    """Answer to a question.

    Attributes:
        probabilities: probability of each option, in the order of the question. They sum to 1.
        best: index of the most probable option.
        is_trained: see `Posed`.
        is_cut: True if the beginning of the state was left out, since it did not fit the model's context.
        tokens_read, tokens_written: number of tokens of the prompts, and of the reflection if there is one.
    """

    probabilities: tuple[float, ...]
    best: int
    is_trained: bool
    is_cut: bool
    tokens_read: int
    tokens_written: int

    @property
    def confidence(self) -> float:
        """The highest probability, scaled so that equal probabilities give 0 and certainty gives 1."""
        count = len(self.probabilities)
        return _within_bounds((max(self.probabilities) - 1 / count) / (1 - 1 / count))

    @property
    def score(self) -> float:
        """The expected index of an option, for options that are ordered levels."""
        return float(sum(level * probability for level, probability in enumerate(self.probabilities)))

    @property
    def score_confidence(self) -> float:
        """Closeness to the most probable level: 1 minus the mean distance from it, relative to equal probabilities.

        The distance of equal probabilities is taken from the middle of the scale.
        """
        count = len(self.probabilities)
        distance = sum(p * abs(level - self.best) for level, p in enumerate(self.probabilities))
        equal = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
        return _within_bounds(1 - distance / equal)

    def notes(self) -> dict[str, bool]:
        """Return warnings about the answer, as fields that clients of both protocols ignore if unknown."""
        notes = {"x_untrained": not self.is_trained, "x_cut": self.is_cut}
        return {name: True for name, holds in notes.items() if holds}


class AnswerNotes(BaseModel):
    """Fields of an answer's body that tell a client what `Verdict.notes` says. Both protocols have them."""

    x_untrained: Literal[True] | None = Field(
        None, description="The agent was never trained for such a question: the confidence is low on purpose."
    )
    x_cut: Literal[True] | None = Field(
        None, description="The beginning of the state was not read, since it does not fit the model's context."
    )


def pose(state: State, question: Question, familiar: Familiar) -> Posed:
    """Bring a question into the form in which an agent reads it. The order of its options does not matter."""
    seen = state.observation
    if seen is not None and question.actions and set(question.actions) <= set(seen.actions):
        return Posed(seen, tuple(map(seen.actions.index, question.actions)), True)
    # Options in alphabetical order: the answer is then the same to the last bit, however a request lists them.
    ranks = {name: rank for rank, name in enumerate(sorted(question.actions))}
    read = familiar.reading(state, question, list(ranks))
    if read is not None:
        observation, action_of = read
        return Posed(observation, tuple(action_of[ranks[name]] for name in question.actions), True)
    options = tuple(sorted(question.options))
    # As a history, since a history that is too long for the context loses its beginning, not its end.
    as_history = Observation(state.text + instructions_text(question.instructions), "", options)
    return Posed(as_history, tuple(map(options.index, question.options)), False)


def verdict(posed: Posed, turns: Sequence[Turn], tokens_read: int, is_cut: bool) -> Verdict:
    """Return the answer to a question, made from the turns of the player that was asked."""
    [turn] = [turn for turn in turns if isinstance(turn, Choice)]
    written = sum(len(turn.token_ids) for turn in turns if isinstance(turn, Reflection))
    option_probs = [turn.probs[action] for action in posed.order]
    count, total = len(option_probs), math.fsum(option_probs)  # a sum that is exact, so the same in any order
    probabilities = [probability / total if total > 0 else 1 / count for probability in option_probs]
    if not posed.is_trained:
        probabilities = [UNTRAINED * probability + (1 - UNTRAINED) / count for probability in probabilities]
    # Among equal probabilities the earliest action is the choice, in the environment's or the alphabetical order.
    best = max(range(count), key=lambda i: (probabilities[i], -posed.order[i]))
    return Verdict(tuple(probabilities), best, posed.is_trained, is_cut, tokens_read, written)


def _within_bounds(confidence: float) -> float:
    """Clip what rounding may push past the ends."""
    return float(min(1.0, max(0.0, confidence)))
