"""Vocabulary of reflectrl: frozen dataclasses that every other module uses.

An environment yields `Observation`s of a `Task`, and players answer with `Turn`s. A `Step` is an observation with the
turns taken on it. An `Episode` is a task's steps, its outcome and its provenance. It is written as one JSON line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
Ending = Literal["", "cut", "filtered", "declined", "refused", "unread"]
"""End of a model's answer. "": it is complete. "cut": it reached its largest length. "filtered": a content filter
withheld it. "declined": the model declined to answer. "refused": the server refused the question, so the episode counts
as lost. "unread": the same, but the episode is left out of the results."""
StepLabel = Literal["positive", "negative"]


class UserError(Exception):
    """Mistake in the user's input. The message is one line that names what is wrong and what would be right.

    The command line prints the message without a traceback, and exits with code 2.
    """


class TooLongError(UserError):
    """A text that does not fit a model's context."""


@dataclass(frozen=True)
class Task:
    """Instance to solve.

    `payload` holds whatever the environment needs to build the instance (JSON values only). `stage` is the task's stage
    of the curriculum, which decides what counts as success.
    """

    id: str
    env: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    stage: str = "full"


@dataclass(frozen=True)
class Observation:
    """Observation that a player acts on: text in two parts, and the legal actions.

    `history` only grows within an episode, while `state` may change completely at every step. Because of this split, a
    model has to read each part of the history only once. `carried` is the latest reflection of the episode, for a
    reflector that reads it again (`play.reflection = "carried"`). Environments leave it empty, and policies do not read
    it.
    """

    history: str
    state: str
    actions: tuple[str, ...]
    carried: str = ""

    @property
    def text(self) -> str:
        """The whole text as one string, which is the gymnasium observation."""
        return self.history + self.state

    def after(self, before: Observation, reflection: str | None) -> Observation:
        """Return this observation with the latest reflection of the episode.

        Args:
            before: the previous observation.
            reflection: the reflection on it. If there is none, the text that was carried there is carried further.
        """
        return replace(self, carried=before.carried if reflection is None else reflection)


@dataclass(frozen=True)
class Outcome:
    """Outcome of an action.

    `terminated` ends the episode. `success` means that the task's stage is won. Once won, it stays won. `events` are
    short words ("pickup", "illegal") that evaluation and the report count. `truncated` cuts the episode off, as the
    horizon does: the episode would have gone on, so its end says nothing about the last action. An outcome that is both
    terminated and truncated counts as terminated.
    """

    reward: float
    terminated: bool = False
    success: bool = False
    events: tuple[str, ...] = ()
    truncated: bool = False


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a turn. `temperature` 0 is greedy.

    `top_k` keeps that many of the most probable actions or tokens (0 keeps all), and `top_p` of these the smallest set
    whose probability reaches it (1 keeps all).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """True if something may be left out of the distribution before sampling."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)


@dataclass(frozen=True)
class Turn:
    """Turn of a player: a `Reflection`, or the `Choice` of an action.

    Both have the same fields, so that all turns look alike in a log. A reflection leaves the fields about actions at
    their defaults.

    Attributes:
        player: name of the player ("policy", "reflector", "expert", "random", ...).
        text: the reflection, or the text of the chosen action.
        choice: index into the observation's actions; None for a reflection.
        order: order in which the actions were listed to the player: label i stood for action `order[i]`. Empty if the
            player saw no labels, or saw them in the environment's order.
        probs: probability of each legal action, aligned with the observation's actions; empty if unknown.
        token_ids: generated token ids (for a choice, the label's token or the tokens of the action's text).
        logprobs: log-probability (nats) of each generated token under the sampling distribution. A choice has a single
            value, the log-probability of the action.
        entropy: entropy (nats) of the choice distribution; None for a reflection.
        sampling: sampling settings; None for players that do not sample from a model.
        support: indices of the actions that top-k and top-p left to choose from; empty if no action was left out.
        ended: end of the answer of a model behind an endpoint, if it was not complete.
        prompt_ids: token ids of the prompt that a language model read, so that learning need not render it again.
            They are kept in memory only: an episode that was read from a file has none.
    """

    player: str
    text: str
    choice: int | None = None
    order: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropy: float | None = None
    sampling: Sampling | None = None
    support: tuple[int, ...] = ()
    ended: Ending = ""
    prompt_ids: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if type(self) is Turn:
            raise TypeError("a turn is a Reflection or a Choice")


@dataclass(frozen=True)
class Reflection(Turn):
    """Text that a player wrote about an observation, for the player who chooses next."""


@dataclass(frozen=True)
class Choice(Turn):
    """Choice of an action."""

    choice: int = field()  # overrides the default, so that a choice cannot be left out


@dataclass(frozen=True)
class AuxiliaryQuestion:
    """Further question about a state. A policy is trained on it too, so that it learns what its choice depends on.

    Attributes:
        text: the question, in one line.
        answers: the possible answers.
        correct: index of the correct answer.
    """

    text: str
    answers: tuple[str, ...] = ("yes", "no")
    correct: int = 0


@dataclass(frozen=True)
class Step:
    """Step of an episode: an observation, the turns taken on it, the action that followed, and its reward.

    Attributes:
        action: index of the executed action in `observation.actions`.
        reward: the environment's reward, milestone rewards included (in environment units, already scaled).
        events: events of the step, in the environment's words ("pickup", "illegal", ...).
        target: index of the best action according to the teacher; None outside teaching data.
        label: use of this step in supervised fine-tuning: "positive" (a step on the way), "negative" (the step after
            an error, whose reflection explains it), or None (context only; nothing trains on it).
        preferences: the teacher's relative weight of each legal action, if it ranks more than the best one.
        questions: further questions about this state, with their answers.
    """

    observation: Observation
    turns: tuple[Turn, ...]
    action: int
    reward: float
    events: tuple[str, ...] = ()
    target: int | None = None
    label: StepLabel | None = None
    preferences: tuple[float, ...] = ()
    questions: tuple[AuxiliaryQuestion, ...] = ()

    @property
    def best(self) -> tuple[int, ...]:
        """The teacher's best actions: the most preferred ones, or the target. Empty outside teaching data."""
        if self.preferences:
            highest = max(self.preferences)
            return tuple(i for i, weight in enumerate(self.preferences) if weight == highest)
        return () if self.target is None else (self.target,)

    @property
    def reflection(self) -> str | None:
        """The text that was written before the action was chosen, or None."""
        return next((turn.text for turn in self.turns if isinstance(turn, Reflection)), None)

    @property
    def choice(self) -> Choice | None:
        """The turn in which the action was chosen, or None."""
        return next((turn for turn in self.turns if isinstance(turn, Choice)), None)

    @property
    def gave_up(self) -> bool:
        """True if the server of an acting model refused the question, so that the episode ended here."""
        return self.choice is not None and self.choice.ended in ("refused", "unread")


@dataclass(frozen=True)
class CutOff:
    """Point at which a limit cut an episode off: the observation after its last step.

    Attributes:
        observation: the observation on which no action was chosen.
        reflection: the reflection that was written about it for a critic, or None.
    """

    observation: Observation
    reflection: str | None = None


@dataclass(frozen=True)
class Episode:
    """Episode: a task's steps, their outcome and their provenance.

    Attributes:
        success: True if the task's stage was won. An event decides this, never the return.
        truncated: True if the horizon or the environment itself cut the episode off.
        seed: seed of the environment's and the players' randomness in this episode.
        provenance: the players (arm, model, adapter, revision), and the versions of the software.
        cut_off: the point at which a truncated episode was cut off, from which a critic estimates the rest. It is kept
            in memory only: an episode that was read from a file has none.
    """

    task: Task
    steps: tuple[Step, ...]
    success: bool
    truncated: bool
    seed: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    cut_off: CutOff | None = field(default=None, compare=False, repr=False)

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return sum(step.reward for step in self.steps)

    @property
    def events(self) -> frozenset[str]:
        """Every event of the episode."""
        return frozenset(event for step in self.steps for event in step.events)


def named_seed(*names: object) -> int:
    """Derive a 63-bit seed from names alone. It is the same in every process and on every machine.

    `named_seed(run_seed, "rollout", update, task.id)` gives every use of randomness its own stream. So results depend
    neither on the order of the work nor on how it is divided among processes.
    """
    digest = hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
