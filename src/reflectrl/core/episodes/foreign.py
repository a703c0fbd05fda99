"""Episodes from other programs, which may be incomplete.

`teach.replayed` replays such an episode in its environment, which adds the missing parts. `teach.unreplayed` takes it
as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from reflectrl.core.types import Episode, Observation, Task, Turn


@dataclass(frozen=True)
class ForeignStep:
    """Step of an episode from another program. None means unknown.

    Attributes:
        action: text of the action taken, or its index among the legal actions.
        observation: one text, or its two parts.
        turns: turns of the players. The choice of the action may be missing.
        mistake: True if the step must not be imitated.
    """

    action: str | int
    observation: str | Observation | None = None
    actions: tuple[str, ...] | None = None
    reward: float | None = None
    events: tuple[str, ...] | None = None
    turns: tuple[Turn, ...] = ()
    mistake: bool = False


@dataclass(frozen=True)
class ForeignEpisode:
    """Episode from another program. None means unknown.

    Attributes:
        task: the task, or its id.
        whole: the complete episode, if it comes from one of our own logs.
    """

    task: Task | str
    steps: tuple[ForeignStep, ...]
    success: bool | None = None
    truncated: bool | None = None
    seed: int | None = None
    player: str = "human"
    whole: Episode | None = None


def as_foreign(episode: Episode) -> ForeignEpisode:
    """Convert an episode from our own logs."""
    steps = (
        ForeignStep(step.observation.actions[step.action], step.observation, step.observation.actions, step.reward,
                 step.events, step.turns)
        for step in episode.steps
    )  # fmt: skip
    return ForeignEpisode(episode.task, tuple(steps), episode.success, episode.truncated, episode.seed, whole=episode)
