"""Conversion of episodes to samples: each step's choice is a completion, and its reward is the reward-to-go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice

from reflectrl.core.episodes import task_key
from reflectrl.core.prompts import policy_prompt, words_prompt
from reflectrl.core.types import Episode, Step, Turn, UserError
from reflectrl.models.labels import candidates
from reflectrl.wings.text.samples.rows import checked, finite
from reflectrl.wings.text.samples.sample import Sample, group_of


@dataclass(frozen=True)
class StepReading:
    """Options for turning steps into samples.

    Attributes:
        gamma: discount factor of the reward-to-go, in [0, 1].
        labels: choice labels of the policy's tokenizer (`Policy.labels(n).texts`); by default "1", "2", ...
        words: True for a policy that answers with the text of an action instead of a label.
    """

    gamma: float = 1.0
    labels: tuple[str, ...] = ()
    words: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise UserError(f"gamma must be from 0 to 1, not {self.gamma}")


def rewards_to_go(episode: Episode, gamma: float) -> list[float]:
    """Return the discounted reward-to-go of each step: G_t = r_t + gamma G_{t+1}."""
    rewards = [step.reward for step in reversed(episode.steps)]
    return list(accumulate(rewards, lambda later, reward: reward + gamma * later))[::-1]


def from_episode(episode: Episode, name: str, reading: StepReading = StepReading()) -> Iterator[Sample]:  # noqa: B008
    """Yield a sample per step, with the policy's prompt, and the reward-to-go as reward (environment units).

    Args:
        name: prefix of the samples' ids.

    Raises:
        BadRowError: an action is blank, or a return is not finite.
        UserError: there are fewer labels than actions.
    """
    instance = group_of(task_key(episode.task))
    for t, (step, value) in enumerate(zip(episode.steps, rewards_to_go(episode, reading.gamma), strict=True)):
        # If the action differs from the policy's choice, the choice's order and probabilities do not apply.
        turn = step.choice if step.choice is not None and step.choice.choice == step.action else None
        sampling = turn.sampling if turn else None
        at_temperature = {"temperature": sampling.temperature, "top_p": sampling.top_p} if sampling else {}
        index = turn.order.index(step.action) if turn and turn.order and not reading.words else step.action
        prompt, options = _rendered(step, turn, reading)
        origin = {"task": episode.task.id, "instance": instance, "episode": name, "step": t}
        yield Sample(
            id=f"{name}.{t}",
            group=group_of(prompt),
            prompt=checked(prompt, "prompt"),
            completion=checked(options[index], "action"),
            reward=finite(value, "return"),
            logprob=_logprob(step, turn),
            meta=origin | {"options": options} | at_temperature,
        )


def _rendered(step: Step, turn: Turn | None, reading: StepReading) -> tuple[str, list[str]]:
    """Return the prompt of a step, and the completions to choose from."""
    actions = step.observation.actions
    if reading.words:
        prompt = words_prompt(step.observation, step.reflection)
        return prompt.history + prompt.rest, [f" {action}" for action in actions]
    labels = reading.labels or _labels(len(actions))
    if len(labels) < len(actions):
        raise UserError(f"{len(labels)} choice labels were given, but {len(actions)} actions are listed")
    prompt = policy_prompt(step.observation, step.reflection, labels, turn.order if turn else ())
    return prompt.history + prompt.rest, [f" {label}" for label in labels[: len(actions)]]


@lru_cache(maxsize=64)
def _labels(count: int) -> Sequence[str]:
    return tuple(islice(candidates(), count))


def _logprob(step: Step, turn: Turn | None) -> float | None:
    """Return the log-probability of the choice among the legal actions, at its sampling temperature."""
    if turn is None:
        return None
    if turn.logprobs:
        return sum(turn.logprobs)
    prob = turn.probs[step.action] if turn.probs else 0.0
    return math.log(prob) if prob > 0 else None
