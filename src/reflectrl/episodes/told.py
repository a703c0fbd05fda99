"""Episodes of which not everything is known: what somebody tells of them, before an environment adds the rest.

`teach.replayed` plays such an episode again in its environment; `teach.as_told` takes it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from reflectrl.types import Episode, Observation, Task, Turn


@dataclass(frozen=True)
class ToldStep:
    """A step as somebody tells it; None is what is not told.

    Attributes:
        action: the text of the action taken, or its index among the legal ones.
        observation: a text, or its two parts.
        turns: what was said, without the choice of the action where that is not known in full.
        mistake: whether it is not to be imitated.
    """

    action: str | int
    observation: str | Observation | None = None
    actions: tuple[str, ...] | None = None
    reward: float | None = None
    events: tuple[str, ...] | None = None
    turns: tuple[Turn, ...] = ()
    mistake: bool = False


@dataclass(frozen=True)
class ToldEpisode:
    """An episode as somebody tells it; None is what is not told.

    Attributes:
        task: the task, or its id.
        whole: the episode itself, where it comes from a log of ours.
    """

    task: Task | str
    steps: tuple[ToldStep, ...]
    success: bool | None = None
    truncated: bool | None = None
    seed: int | None = None
    player: str = "human"
    whole: Episode | None = None


def told(episode: Episode) -> ToldEpisode:
    """An episode of a log of ours, as somebody tells it."""
    steps = (
        ToldStep(step.observation.actions[step.action], step.observation, step.observation.actions, step.reward,
                 step.events, step.turns)
        for step in episode.steps
    )  # fmt: skip
    return ToldEpisode(episode.task, tuple(steps), episode.success, episode.truncated, episode.seed, whole=episode)
