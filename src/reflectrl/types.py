"""The vocabulary of reflectrl as frozen dataclasses, which every other module uses.

An environment yields `Observation`s of a `Task`; players answer with `Turn`s; a `Step` is an observation with the turns
taken on it; an `Episode` is a task's steps, its outcome and its provenance, and is written as one JSON line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
StepLabel = Literal["positive", "negative"]


class UserError(Exception):
    """A mistake in the user's input. The message is one line that names what is wrong and what would be right.

    The command line prints the message and exits with code 2; no traceback is shown.
    """


@dataclass(frozen=True)
class Task:
    """One instance to solve.

    `payload` holds whatever the environment needs to build the instance (JSON values only). `stage` is the stage of the
    curriculum that the task belongs to; it decides what counts as success.
    """

    id: str
    env: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"
    stage: str = "full"


@dataclass(frozen=True)
class Observation:
    """What a player sees: text in two parts, and the legal actions.

    `history` only grows within an episode; `state` may change completely at every step. Because of this split, a model
    has to read each part of the history only once.
    """

    history: str
    state: str
    actions: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole text as one string (the gymnasium observation)."""
        return self.history + self.state


@dataclass(frozen=True)
class Outcome:
    """What an action led to.

    `terminated` ends the episode. `success` says that the task's stage is won; once won, it stays won. `events` are
    short words ("pickup", "illegal") that evaluation and the report count. `truncated` breaks the episode off, as the
    horizon does: something would have followed, so the end says nothing about the last action. An outcome that is both
    counts as terminated.
    """

    reward: float
    terminated: bool = False
    success: bool = False
    events: tuple[str, ...] = ()
    truncated: bool = False


@dataclass(frozen=True)
class Sampling:
    """How a turn was drawn: `temperature` 0 is greedy; `top_p` 1 keeps the whole distribution."""

    temperature: float = 1.0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Turn:
    """One piece of text by one player: a reflection, or the choice of an action.

    Attributes:
        player: who took the turn ("policy", "reflector", "expert", "random", ...).
        text: the reflection, or the text of the chosen action.
        choice: index into the observation's actions; None for a reflection.
        order: the order in which the actions were listed to the player: label i stood for action `order[i]`. Empty if
            the player saw no labels, or saw them in the environment's order.
        probs: probability of each legal action, aligned with the observation's actions; empty when unknown.
        token_ids: generated token ids (for a choice: the one label token).
        logprobs: log-probability (nats) of each generated token under the sampling distribution.
        entropy: entropy (nats) of the choice distribution; None for a reflection.
        sampling: how it was sampled; None for players that do not sample from a model.
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


@dataclass(frozen=True)
class Step:
    """An observation, the turns taken on it, the action that followed and its reward.

    Attributes:
        action: index of the executed action in `observation.actions`.
        reward: the environment's reward, milestone rewards included (in environment units, already scaled).
        events: what happened, in the environment's words ("pickup", "illegal", ...).
        target: index of the best action as the teacher knows it; None outside teaching data.
        label: how supervised fine-tuning uses this step: "positive" (a step on the way), "negative" (the step after
            an error, whose reflection explains it), or None (context only; nothing trains on it).
    """

    observation: Observation
    turns: tuple[Turn, ...]
    action: int
    reward: float
    events: tuple[str, ...] = ()
    target: int | None = None
    label: StepLabel | None = None

    @property
    def reflection(self) -> str | None:
        """The text that was written before the action was chosen, or None."""
        return next((turn.text for turn in self.turns if turn.choice is None), None)

    @property
    def choice(self) -> Turn | None:
        """The turn in which the action was chosen, or None."""
        return next((turn for turn in self.turns if turn.choice is not None), None)


@dataclass(frozen=True)
class Episode:
    """A task's steps, how it ended, and where it came from.

    Attributes:
        success: whether the task's stage was won, decided by an event and never by the return.
        truncated: whether it was broken off, by the horizon or by the environment itself.
        seed: the seed from which the environment's and the players' randomness of this episode was drawn.
        provenance: who played (arm, model, adapter, revision), and the versions of the software.
    """

    task: Task
    steps: tuple[Step, ...]
    success: bool
    truncated: bool
    seed: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return sum(step.reward for step in self.steps)

    @property
    def events(self) -> frozenset[str]:
        """Every event of the episode."""
        return frozenset(event for step in self.steps for event in step.events)


def named_seed(*names: object) -> int:
    """A 63-bit seed derived from names alone, the same in every process and on every machine.

    `named_seed(run_seed, "rollout", update, task.id)` gives every use of randomness a stream of its own. So results do
    not depend on the order of the work, nor on how it is spread over processes.
    """
    digest = hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
